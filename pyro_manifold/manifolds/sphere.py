"""The unit sphere, whose points are vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.manifolds.base import Manifold


def great_circle_flow(point: Tensor, tangent: Tensor, time: Tensor | float, dim: int = -1) -> tuple[Tensor, Tensor]:
    r"""Follow a great circle, $x \cos st + \tfrac{r}{s} \sin st$ with speed $s = \|r\|$.

    Args:
        point: x, unit vectors along ``dim``.
        tangent: r, orthogonal to x.
        time: t, a number or a tensor that broadcasts with ``point``.
        dim: the dimension that holds the vectors.

    Returns:
        The end point and the velocity there.
    """
    speed = torch.linalg.vector_norm(tangent, dim=dim, keepdim=True)
    angle = speed * time
    # sinc(z) = sin(πz)/(πz): no division by a speed that may be zero.
    sine_over_speed = time * torch.sinc(angle / math.pi)
    moved = point * angle.cos() + tangent * sine_over_speed
    return moved, tangent * angle.cos() - point * (speed.square() * sine_over_speed)


@dataclass(frozen=True)
class Sphere(Manifold):
    r"""Unit vectors, $\{x \in \mathbb{R}^n : \|x\| = 1\}$, n ≥ 2; tangent vectors at x are orthogonal to x.

    Source: Edelman, Arias & Smith 1998, SIAM Journal on Matrix Analysis and Applications 20, 303–353, for p = 1.

    Examples:
        >>> Sphere().projection(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    event_dim = 1
    shape_in_words = "a vector of 2 or more"

    def dimension(self, *shape: int) -> int:
        """Return n - 1."""
        return shape[0] - 1

    def accepts_shape(self, *shape: int) -> bool:
        """Return whether the shape has one size, at least 2."""
        return len(shape) == 1 and shape[0] >= 2

    def entry_scale(self, *shape: int) -> float:
        r"""Return $1/\sqrt{n}$."""
        return float(shape[0] ** -0.5)

    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return uniform unit vectors."""
        return self.projection(torch.randn(*shape, dtype=dtype, device=device, generator=generator))

    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        r"""Return $g - x\,(x \cdot g)$."""
        return ambient - point * (point * ambient).sum(-1, keepdim=True)

    def projection(self, ambient: Tensor) -> Tensor:
        return ambient / torch.linalg.vector_norm(ambient, dim=-1, keepdim=True)

    def log_volume_of_projection(self, point: Tensor, tangent: Tensor) -> Tensor:
        r"""Return $-\tfrac{n}{2} \log(1 + \|\delta\|^2)$."""
        return -0.5 * point.shape[-1] * tangent.square().sum(-1).log1p()

    def retraction(self, point: Tensor, tangent: Tensor) -> Tensor:
        return self.projection(point + tangent)

    def geodesic_flow(self, point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return great_circle_flow(point, tangent, time)

    def membership_error(self, point: Tensor) -> Tensor:
        r"""Return $|x \cdot x - 1|$; infinite where x is not finite."""
        return (point.square().sum(-1) - 1).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
