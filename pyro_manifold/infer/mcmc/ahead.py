"""Iterations that are made together, in one call of native code, and told one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.states import S, Statistics, unbound

T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Together(Protocol[S, T_contra]):
    """A transition that can make several iterations in one call."""

    def at_once(self, settings: T_contra) -> int:
        """Of how many iterations such as this the cost of a call is small beside theirs; 1 if it makes one by one."""

    def several(
        self, state: S, settings: Sequence[T_contra], random: torch.Generator
    ) -> tuple[S, Statistics, list[Tensor]]:
        """The same iterations, from the same random numbers, as one call for each of the settings would make.

        Returns:
            States and statistics, ``(iterations, chains, ...)``, and the generator's state after each iteration.
        """


class Ahead(Generic[S]):
    """Iterations that have been made and not told yet.

    Whoever looks at the generator or moves the chains in between must `forget` them: they are made again, the same.
    """

    def __init__(self) -> None:
        self._made: deque[tuple[S, Statistics, Tensor]] = deque()
        self._random: Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self._made)

    def add(self, states: S, statistics: Statistics, random: Sequence[Tensor]) -> None:
        """These follow, ``(iterations, chains, ...)``."""
        count = len(random)
        self._made.extend(zip(unbound(states, count), unbound(statistics, count), random, strict=True))

    def next(self) -> tuple[S, Statistics]:
        """The first of them, which is told now."""
        state, statistics, self._random = self._made.popleft()
        return state, statistics

    def forget(self, random: torch.Generator) -> None:
        """As if none of them had been made."""
        if self._made and self._random is not None:
            random.set_state(self._random)
        self._made.clear()
