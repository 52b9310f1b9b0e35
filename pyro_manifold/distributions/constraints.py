"""Pyro's constraints, and those of the manifolds of this package.

`stiefel` is the constraint of matrices with orthonormal columns, a set called the Stiefel manifold, and
`householder_stiefel` is the same set. They differ, as Pyro's `positive` and `softplus_positive` do, in the transform
that `biject_to` and `transform_to` return, from unconstrained space to the manifold: `PolarTransform` for the first and
`HouseholderTransform` for the second. Samplers that move on the manifold itself do not use it. `grassmann` has the same
matrices, for densities that depend on the span of their columns alone, and `special_orthogonal` the square ones with
determinant 1, which are rotations.

The constraint of a distribution on a manifold also names the *base measure* of its density. It is the uniform
distribution for all constraints of this package. Pyro's `sphere` has the surface area instead, whose total is not 1:
unit vectors with densities of either kind have the constraint `uniform_sphere` or `sphere`. What integrates a density
in coordinates asks `log_base_measure`.

`positive_decreasing_vector` is for one value per column that identifies the order
of columns, such as singular values.
"""

from __future__ import annotations

import math
from typing import Any

from pyro.distributions import constraints as pyro_constraints
from pyro.distributions.constraints import *  # noqa: F403
from torch import Size, Tensor
from torch.distributions.constraints import Constraint

from pyro_manifold.manifolds import Grassmann, Manifold, SpecialOrthogonal, Sphere, Stiefel, check_shape


class StiefelConstraint(Constraint):
    r"""Matrices $X$ of shape ``(..., n, p)`` with $X^\top X = I$, up to the rounding of their dtype.

    Examples:
        >>> import torch
        >>> from pyro_manifold import constraints
        >>> constraints.stiefel.check(torch.eye(3, 2)), constraints.stiefel.check(torch.ones(3, 2))
        (tensor(True), tensor(False))
    """

    event_dim = 2
    manifold: Manifold = Stiefel()

    def check(self, value: Tensor) -> Tensor:
        if not value.is_floating_point() or not self.manifold.accepts_shape(*value.shape[-2:]):
            return value.new_zeros(value.shape[:-2]).bool()
        return self.manifold.contains(value)

    def __repr__(self) -> str:
        return "stiefel"


class GrassmannConstraint(StiefelConstraint):
    r"""Subspaces of dimension p, each given by a matrix of shape ``(..., n, p)`` with orthonormal columns.

    Use it for densities and losses that are the same at X and XR for every orthogonal R: optimisers then never rotate
    the columns within their span.

    Examples:
        >>> import torch
        >>> from pyro_manifold import constraints
        >>> constraints.grassmann, bool(constraints.grassmann.check(torch.eye(3, 2)))
        (grassmann, True)
    """

    manifold = Grassmann()

    def __repr__(self) -> str:
        return "grassmann"


class SpecialOrthogonalConstraint(StiefelConstraint):
    r"""Rotations: matrices of shape ``(..., n, n)`` with $X^\top X = I$ and $\det X = 1$.

    `biject_to` returns `RotationTransform`, which is smooth, and `transform_to` `PolarRotationTransform`, under which a
    rotation is its own unconstrained value.

    Examples:
        >>> import torch
        >>> from pyro_manifold import constraints
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> constraints.special_orthogonal.check(torch.eye(2)), constraints.special_orthogonal.check(swap)
        (tensor(True), tensor(False))
    """

    manifold = SpecialOrthogonal()

    def __repr__(self) -> str:
        return "special_orthogonal"


class UniformSphereConstraint(type(pyro_constraints.sphere)):  # type: ignore[misc]
    """Unit vectors whose densities are with respect to the uniform distribution; those of `sphere` to surface area.

    Examples:
        >>> import torch
        >>> from pyro_manifold import constraints
        >>> constraints.uniform_sphere.check(torch.tensor([0.6, 0.8]))
        tensor(True)
    """

    def __repr__(self) -> str:
        return "uniform_sphere"


class PositiveDecreasingVector(Constraint):
    r"""Vectors ``(..., p)`` with $y_1 \ge \dots \ge y_p > 0$, such as singular values.

    `DecreasingTransform` maps unconstrained space to them; its values are equal only by rounding.

    Examples:
        >>> import torch
        >>> from pyro_manifold import constraints
        >>> constraints.positive_decreasing_vector.check(torch.tensor([[3.0, 1.0], [1.0, 3.0], [1.0, -1.0]]))
        tensor([ True, False, False])
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        if not value.dim() or not value.shape[-1]:
            return value.new_zeros(value.shape[:-1]).bool()
        return (value[..., -1] > 0) & (value[..., :-1] >= value[..., 1:]).all(-1)

    def __repr__(self) -> str:
        return "positive_decreasing_vector"


class HouseholderStiefelConstraint(StiefelConstraint):
    """Matrices with orthonormal columns; `HouseholderTransform` is the transform from unconstrained space.

    The length of the unconstrained vector does not determine n and p, so the constraint stores them.

    Args:
        n: number of rows.
        p: number of columns, at most n.

    Raises:
        ValueError: unless 1 ≤ p ≤ n.

    Examples:
        >>> import torch
        >>> householder_stiefel(3, 2).check(torch.eye(3, 2))
        tensor(True)
    """

    def __init__(self, n: int, p: int) -> None:
        check_shape(n, p, "constraints.householder_stiefel")
        self.n, self.p = n, p
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2:] != (self.n, self.p):
            return value.new_zeros(value.shape[:-2]).bool()
        return super().check(value)

    def __repr__(self) -> str:
        return f"householder_stiefel({self.n}, {self.p})"


stiefel = StiefelConstraint()
r"""Matrices ``(..., n, p)`` with orthonormal columns, $X^\top X = I$; the transform is `PolarTransform`."""

grassmann = GrassmannConstraint()
"""Subspaces spanned by the orthonormal columns of ``(..., n, p)``; the transform is `PolarTransform`."""

special_orthogonal = SpecialOrthogonalConstraint()
r"""Rotations ``(..., n, n)``, $X^\top X = I$ and $\det X = 1$.

The transform of `biject_to` is `RotationTransform`, that of `transform_to` `PolarRotationTransform`.
"""

householder_stiefel = HouseholderStiefelConstraint
"""Matrices with orthonormal columns, as ``householder_stiefel(n, p)``; the transform is `HouseholderTransform`."""

uniform_sphere = UniformSphereConstraint()
"""Unit vectors ``(..., n)``, densities with respect to the uniform distribution; the transform is `SphereTransform`."""

positive_decreasing_vector = PositiveDecreasingVector()
r"""Vectors ``(..., p)`` with $y_1 \ge \dots \ge y_p > 0$; the transform is `DecreasingTransform`."""


def of_elements(constraint: Any) -> Any:
    """Return the constraint of single elements, inside of those that reinterpret dimensions as one event."""
    while isinstance(constraint, pyro_constraints.independent):
        constraint = constraint.base_constraint
    return constraint


def manifold_of(constraint: Constraint) -> Manifold | None:
    """Return the manifold of a constraint; None for constraints with unconstrained coordinates."""
    constraint = of_elements(constraint)
    if isinstance(constraint, type(pyro_constraints.sphere)):
        return Sphere()
    return getattr(constraint, "manifold", None)


def log_base_measure(constraint: Constraint, shape: Size) -> float:
    r"""Return the log of the total base measure of densities with this constraint, of a value of this shape.

    It is 0, since base measures are normalised, except for Pyro's `sphere`: each unit vector in $\mathbb{R}^n$
    contributes the area, $2 \pi^{n/2} / \Gamma(n/2)$.
    """
    constraint = of_elements(constraint)
    if type(constraint) is not type(pyro_constraints.sphere):
        return 0.0
    n = shape[-1]
    return shape.numel() // n * (math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2))


__all__ = [
    *pyro_constraints.__all__,
    "grassmann",
    "householder_stiefel",
    "log_base_measure",
    "manifold_of",
    "positive_decreasing_vector",
    "special_orthogonal",
    "stiefel",
    "uniform_sphere",
]
