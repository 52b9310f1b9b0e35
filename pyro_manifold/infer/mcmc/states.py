"""The words that all kernels share: blocks of sites, states of chains, transitions and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

Block = tuple[str, ...]
"""Names of the sites that move as one tensor: one manifold site, or a group of unconstrained ones."""

Blocks = dict[Block, Tensor]
"""A tensor for each block; dimension 0 is the chain."""

Potential = Callable[[Blocks], tuple[Tensor, Blocks]]
"""Maps positions to the potential energy ``(chains,)``, minus the log density, and its Euclidean gradient."""

Statistics = dict[str, Tensor]
"""What a transition tells of itself, ``{name: (chains,)}``; by ArviZ's name where ArviZ has one."""


class ChainState(Protocol):
    """Where all chains are: what tuning and diagnostics need to know of any state. None is ever changed in place."""

    @property
    def position(self) -> Blocks: ...

    @property
    def energy(self) -> Tensor: ...

    @property
    def gradient(self) -> Blocks: ...


class NotFiniteError(ArithmeticError):
    """A transition that led to values that are not finite, and cannot be rejected."""


class PlainState(NamedTuple):
    """A position of every chain and its energy: the state of kernels without momenta."""

    position: Blocks
    energy: Tensor
    gradient: Blocks


S = TypeVar("S", bound=ChainState)
T_contra = TypeVar("T_contra", contravariant=True)


class Transition(Protocol[S, T_contra]):
    """A move of all chains that leaves their distribution as it is (or nearly, for unadjusted ones).

    A transition has no memory: what it needs of the past is in the state, what it needs of tuning in the settings.
    """

    def __call__(self, state: S, settings: T_contra, random: torch.Generator) -> tuple[S, Statistics]:
        """The next state, and what happened."""


# ---- helpers for tensors whose first dimension is the chain ------------------------------------------------------


def per_chain(value: Tensor | float, like: Tensor) -> Tensor | float:
    """A number for each chain (or one for all), in a shape that multiplies a block."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.reshape(-1, *[1] * (like.dim() - 1))


def choose(accepted: Tensor, new: Any, old: Any) -> Any:
    """The new value of each chain that accepted, else the old; for tensors, dictionaries and tuples of them."""
    if isinstance(new, Tensor):
        return torch.where(accepted.reshape(-1, *[1] * (new.dim() - 1)), new, old)
    if isinstance(new, dict):
        return {key: choose(accepted, value, old[key]) for key, value in new.items()}
    chosen = tuple(choose(accepted, *pair) for pair in zip(new, old, strict=True))
    return type(new)(*chosen) if hasattr(new, "_fields") else chosen


def in_rows(value: Any) -> Any:
    """The same numbers, in memory row by row; for tensors, and dictionaries and tuples of them.

    Matrix libraries round by the layout, so that draws would depend on whether a state has been saved and loaded.
    """
    if isinstance(value, Tensor):
        return value.contiguous()
    if isinstance(value, dict):
        return {key: in_rows(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(in_rows, value))
    return value


def unbound(value: Any, count: int) -> list[Any]:
    """Its rows, one after the other; for tensors, and dictionaries and named tuples of them. All else is in each."""
    if isinstance(value, Tensor):
        return list(value.unbind(0))
    if isinstance(value, dict):
        columns = [unbound(part, count) for part in value.values()]
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)] if columns else [{}] * count
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [type(value)(*row) for row in zip(*[unbound(part, count) for part in value], strict=True)]
    return [value] * count


class GivenNumbers(torch.Generator):
    """Random numbers that were drawn before, in the order in which they are asked for.

    With these, what is otherwise random is a function of tensors, and can be traced.
    """

    numbers: Iterator[Tensor]

    @classmethod
    def of(cls, *numbers: Tensor) -> GivenNumbers:
        """These numbers."""
        given = cls()
        given.numbers = iter(numbers)
        return given


def normal_like(tensor: Tensor, random: torch.Generator | None = None) -> Tensor:
    """Standard normal numbers of the shape, dtype and device of a tensor."""
    if isinstance(random, GivenNumbers):
        return next(random.numbers).clone()  # a caller may write to it, as to numbers of its own
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=random)


def uniform_like(tensor: Tensor, random: torch.Generator | None = None) -> Tensor:
    """Uniform numbers in [0, 1) of the shape, dtype and device of a tensor."""
    if isinstance(random, GivenNumbers):
        return next(random.numbers)
    return torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=random)
