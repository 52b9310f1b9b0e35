"""Priors of a module's tensors, constructed whenever a tensor is read.

A distribution constructed once would keep its dtype and device. These priors take them from an empty buffer of the
module, which ``module.to(...)`` moves and casts like any other. They are objects with a `__call__`, because a lambda
could not be pickled and a function would be renamed by `PyroSample`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_manifold.distributions import OrderedHalfNormal, StiefelUniform


def remember_placement(
    module: nn.Module, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> None:
    """Register an empty buffer in a module; its dtype and device are those in which the module's tensors are drawn."""
    module.register_buffer("_placement", torch.empty(0, dtype=dtype, device=device), persistent=False)


def placement(module: nn.Module) -> Tensor:
    """Return an empty tensor of the dtype and on the device of a module."""
    like = module._placement
    assert isinstance(like, Tensor)
    return like


@dataclass(frozen=True)
class NormalPrior:
    """Prior of independent normal entries.

    Attributes:
        shape: shape of the tensor.
        scale: standard deviation of each entry.
        mean: mean of each entry.
    """

    shape: tuple[int, ...]
    scale: float
    mean: float = 0.0

    def __call__(self, module: nn.Module) -> Any:
        like = placement(module)
        normal = dist.Normal(like.new_full((), self.mean), like.new_full((), self.scale))
        return normal.expand(self.shape).to_event(len(self.shape))


@dataclass(frozen=True)
class StiefelPrior:
    """Uniform prior of matrices with orthonormal columns.

    Attributes:
        rows: n.
        columns: p, at most n.
        batch: shape of a batch of independent matrices that make one site.
    """

    rows: int
    columns: int
    batch: tuple[int, ...] = ()

    def __call__(self, module: nn.Module) -> Any:
        like = placement(module)
        uniform = StiefelUniform(self.rows, self.columns, self.batch, dtype=like.dtype, device=like.device)
        return uniform.to_event(len(self.batch)) if self.batch else uniform


@dataclass(frozen=True)
class OrderedHalfNormalPrior:
    """Prior of the order statistics of half-normal numbers, the largest first.

    Attributes:
        size: number of values.
        scale: scale of the half-normal distribution.
    """

    size: int
    scale: float

    def __call__(self, module: nn.Module) -> Any:
        return OrderedHalfNormal(self.size, placement(module).new_full((), self.scale))
