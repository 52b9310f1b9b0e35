"""Transform from a vector to the unit vector of its direction, which takes Gaussian to uniform unit vectors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.distributions import Transform, constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.constraints import log_base_measure, uniform_sphere
from pyro_manifold.manifolds import Sphere


class SphereTransform(Transform):
    r"""Direction $x = z / \|z\|$ of any vector $z \ne 0$: `PolarTransform` for p = 1.

    ``log_abs_det_jacobian`` is $\log m + \sum_i \log N(z_i; 0, 1)$, the parameter expansion of `PolarTransform`, with
    the total m of the base measure of densities of x: 1 for `uniform_sphere`, the area for Pyro's `sphere`. The
    pseudo-inverse is ``z = x``.

    Args:
        codomain: `constraints.uniform_sphere` or `constraints.sphere`, which differ in the base measure.

    Shapes: ``(..., n)`` on both sides; dtype and device are the input's.

    Examples:
        >>> import torch
        >>> from torch.distributions import biject_to
        >>> from pyro_manifold import constraints
        >>> biject_to(constraints.sphere)(torch.tensor([0.0, 2.0])).tolist()
        [0.0, 1.0]
    """

    domain = constraints.real_vector
    bijective = False

    def __init__(self, codomain: Constraint = uniform_sphere, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.codomain = codomain

    def with_cache(self, cache_size: int = 1) -> SphereTransform:
        return SphereTransform(self.codomain, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SphereTransform) and type(self.codomain) is type(other.codomain)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        return Sphere().projection(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        area = log_base_measure(self.codomain, x.shape[-1:])
        return area - 0.5 * (x.square() + math.log(2 * math.pi)).sum(-1)
