"""Manifold of fixed points, for sites that do not move."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.manifolds.base import Manifold


@dataclass(frozen=True)
class Constant(Manifold):
    """A fixed vector, a manifold of dimension 0, for constants on which a density depends, such as a temperature.

    A site with this manifold is an input of the density with its own value in each chain, which no kernel changes. Its
    gradient is the derivative of the potential energy.

    Examples:
        >>> Constant().retraction(torch.tensor([0.5]), torch.tensor([1.0]))
        tensor([0.5000])
    """

    event_dim = 1
    shape_in_words = "a vector"

    def dimension(self, *shape: int) -> int:
        """Return 0."""
        return 0

    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return ones."""
        return torch.ones(*shape, dtype=dtype, device=device)

    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        """Return zeros, the only tangent vector."""
        return torch.zeros_like(ambient)

    def projection(self, ambient: Tensor) -> Tensor:
        return ambient

    def log_volume_of_projection(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return 0."""
        return tangent.new_zeros(tangent.shape[: tangent.dim() - self.event_dim])

    def retraction(self, point: Tensor, tangent: Tensor) -> Tensor:
        return point

    def geodesic_flow(self, point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return point, tangent

    def membership_error(self, point: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(point[..., 0])
