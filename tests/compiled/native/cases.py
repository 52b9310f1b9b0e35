"""Densities by name, for tests of what native code covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

Shape = tuple[int, ...]


class Case(NamedTuple):
    """A density of unconstrained tensors.

    Attributes:
        log_density: a function of one chain's tensors to a number.
        shapes: of the tensors.
    """

    log_density: Callable[..., Tensor]
    shapes: tuple[Shape, ...]

    def density(self, *values: Tensor) -> Tensor:
        """The density without validation, as models are sampled."""
        with pyro.validation_enabled(False):
            return self.log_density(*values)

    def inputs(self, chains: int) -> list[Tensor]:
        """Random numbers, not large."""
        return [torch.randn(chains, *shape) for shape in self.shapes]


def as_numbers(data: object) -> Tensor:
    """Data in the default dtype; whole numbers in tensors stay whole."""
    if isinstance(data, Tensor) and not data.is_floating_point():
        return data
    return torch.as_tensor(data, dtype=torch.get_default_dtype())
