"""Transform from a matrix to the nearest one with orthonormal columns, which takes Gaussian to uniform matrices."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.distributions import Transform, constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.constraints import stiefel
from pyro_manifold.manifolds import check_shape, polar_factor


class PolarTransform(Transform):
    r"""Polar factor $X = Z (Z^\top Z)^{-1/2}$ of any full-rank matrix $Z \in \mathbb{R}^{n \times p}$.

    X is the matrix with orthonormal columns that is nearest to Z. The map discards the symmetric factor
    $(Z^\top Z)^{1/2}$, so it has no Jacobian determinant. Parameter expansion takes its place: with

    $$ \texttt{log\_abs\_det\_jacobian}(Z, X) = \sum_{ij} \log N(Z_{ij}; 0, 1) $$

    the integral $\int p(X(Z))\, e^{\texttt{log\_abs\_det\_jacobian}} dZ$ equals
    $\int p(X)\, dX$ over the uniform distribution (the **normalised** Haar measure), because the polar factor of
    a Gaussian matrix is uniform and independent of the symmetric factor. A sampler over Z therefore draws X from the
    correct distribution, and an ELBO over Z is a valid lower bound.

    The pseudo-inverse is ``Z = X``. The derivative is not finite where Z does not have full rank.

    Shapes: ``(..., n, p)`` on both sides; dtype and device are the input's.

    Args:
        codomain: `constraints.stiefel` or `constraints.grassmann`, which have the same elements.

    Raises:
        ValueError: for a matrix with n < p.

    Source: Jauch, Hoff & Dunson 2021, arXiv 1906.07684.

    Examples:
        >>> import torch
        >>> from torch.distributions import biject_to
        >>> from pyro_manifold import constraints
        >>> transform = biject_to(constraints.stiefel)
        >>> X = transform(torch.tensor([[2.0], [0.0]]))
        >>> torch.allclose(X, torch.tensor([[1.0], [0.0]]), atol=1e-6), torch.allclose(transform.inv(X), X, atol=1e-6)
        (True, True)
    """

    domain = constraints.independent(constraints.real, 2)
    bijective = False

    def __init__(self, codomain: Constraint = stiefel, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.codomain = codomain

    def with_cache(self, cache_size: int = 1) -> PolarTransform:
        return PolarTransform(self.codomain, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolarTransform) and type(self.codomain) is type(other.codomain)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        check_shape(x.shape[-2], x.shape[-1], f"constraints.{self.codomain}")
        return polar_factor(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum((-2, -1))
