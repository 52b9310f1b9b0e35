"""Euclidean space: the manifold of every unconstrained site."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from pyro_manifold.manifolds.base import Manifold


@dataclass(frozen=True)
class Euclidean(Manifold):
    """Real tensors with ``event_dim`` trailing event dimensions; projection is the identity, a retraction a sum.

    Examples:
        >>> Euclidean().retraction(torch.zeros(2), torch.ones(2)).tolist()
        [1.0, 1.0]
    """

    event_dim: int = 1

    def dimension(self, *shape: int) -> int:
        return prod(shape)

    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return independent standard normal entries, since Euclidean space has no uniform distribution."""
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        return ambient

    def projection(self, ambient: Tensor) -> Tensor:
        return ambient

    def log_volume_of_projection(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return 0."""
        return tangent.new_zeros(tangent.shape[: tangent.dim() - self.event_dim])

    def retraction(self, point: Tensor, tangent: Tensor) -> Tensor:
        return point + tangent

    def geodesic_flow(self, point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return point + time * tangent, tangent

    def membership_error(self, point: Tensor) -> Tensor:
        """Return 0 for finite tensors and infinity for others."""
        distance = torch.where(torch.isfinite(point), 0.0, torch.inf).to(point.dtype)
        return distance.flatten(-self.event_dim).amax(-1) if self.event_dim else distance
