"""Energies and gradients of any number of points, by a function for a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import K


class Energies(Generic[K]):
    """Energies and gradients of any number of points, evaluated in batches of a fixed size.

    Args:
        batched: computes energies and gradients of ``width`` points.
        width: number of points in a call, for which a graph is traced.

    Attributes:
        evaluations: number of evaluations of single points.
    """

    def __init__(self, batched: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]], width: int) -> None:
        self._batched: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]] = batched
        self.width = width
        self.evaluations = 0

    def __call__(self, sites: Mapping[K, Tensor]) -> tuple[Tensor, dict[K, Tensor]]:
        count = len(next(iter(sites.values())))
        parts = []
        for first in range(0, count, self.width):
            rows = torch.arange(first, first + self.width).clamp(max=count - 1)
            parts.append(self._batched({name: x[rows] for name, x in sites.items()}))
            self.evaluations += self.width
        energy = torch.cat([value for value, _ in parts])[:count]
        return energy, {name: torch.cat([slope[name] for _, slope in parts])[:count] for name in sites}
