"""Batched iterations: several iterations in one call of native code, returned one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions.states import S, Statistics, unbound

T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class BatchedIterations(Protocol[S, T_contra]):
    """Protocol of a transition that can run several iterations in one call."""

    def iterations_per_call(self, settings: T_contra) -> int:
        """Return the number of iterations worth batching into one call; 1 if batching is not supported."""

    def iterate(
        self, state: S, settings: Sequence[T_contra], random: torch.Generator
    ) -> tuple[list[S], Statistics, list[Tensor]]:
        """Run one iteration for each of the settings, with the same result as separate calls.

        Returns:
            The states, statistics ``(iterations, chains)``, and the generator's state after each iteration; fewer
            iterations than requested if the next one raises an error.
        """


class Lookahead(Generic[S]):
    """Buffer of batched iterations that have been computed but not yet returned.

    Callers that read the generator or move the chains must call `forget` first; the iterations are then recomputed.
    """

    def __init__(self) -> None:
        self._made: deque[tuple[S, Statistics, Tensor]] = deque()
        self._random: Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self._made)

    def add(self, states: Sequence[S], statistics: Statistics, random: Sequence[Tensor]) -> None:
        """Append iterations; statistics are ``(iterations, chains)``."""
        self._made.extend(zip(states, unbound(statistics, len(random)), random, strict=True))

    def next(self) -> tuple[S, Statistics]:
        """Remove and return the first iteration."""
        state, statistics, self._random = self._made.popleft()
        return state, statistics

    def forget(self, random: torch.Generator) -> None:
        """Discard all iterations and reset the generator to its state after the last one returned."""
        if self._made and self._random is not None:
            random.set_state(self._random)
        self._made.clear()
