"""Transform from a vector to the unit vector of its direction, which takes Gaussian to uniform unit vectors."""

from __future__ import annotations

import math
from typing import Any

from pyro.distributions.constraints import sphere
from torch import Tensor
from torch.distributions import Transform, constraints

from pyro_manifold.manifolds import Sphere


class SphereTransform(Transform):
    r"""Direction $x = z / \|z\|$ of any vector $z \ne 0$: `PolarTransform` for p = 1.

    ``log_abs_det_jacobian`` is $\sum_i \log N(z_i; 0, 1)$, the parameter expansion of `PolarTransform`; the base
    measure of densities over x is the uniform distribution. The pseudo-inverse is ``z = x``.

    Shapes: ``(..., n)`` on both sides; dtype and device are the input's.

    Examples:
        >>> import torch
        >>> from torch.distributions import biject_to
        >>> from pyro_manifold import constraints
        >>> biject_to(constraints.sphere)(torch.tensor([0.0, 2.0])).tolist()
        [0.0, 1.0]
    """

    domain = constraints.real_vector
    codomain = sphere
    bijective = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SphereTransform)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        return Sphere().projection(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1)
