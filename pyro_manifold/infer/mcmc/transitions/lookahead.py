"""Batched iterations: several iterations in one call of native code, returned together or one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions.states import S, Statistics, unbound

T_contra = TypeVar("T_contra", contravariant=True)


class Together(NamedTuple, Generic[S]):
    """Iterations made in one call.

    Attributes:
        states: states after the iterations, a tree of tensors ``(iterations, chains, ...)``.
        statistics: their statistics, ``(iterations, chains)``.
        at: function that returns the state after an iteration, by its index.
        random: the generator's state after each iteration.
    """

    states: S
    statistics: Statistics
    at: Callable[[int], S]
    random: list[Tensor]


@runtime_checkable
class BatchedIterations(Protocol[S, T_contra]):
    """Protocol of a transition that can run several iterations in one call."""

    def iterations_per_call(self, settings: T_contra) -> int:
        """Return the number of iterations worth batching into one call; 1 if batching is not supported."""

    def iterate(
        self, state: S, settings: Sequence[T_contra], random: torch.Generator, *, rewindable: bool = True
    ) -> Together[S] | None:
        """Run one iteration for each of the settings, with the same result as separate calls.

        Returns:
            The iterations, without states of the generator unless ``rewindable``; fewer than requested if the next one
            raises an error, and None if the first does.
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

    def add(self, made: Together[S]) -> None:
        """Append iterations."""
        statistics = unbound(made.statistics, len(made.random))
        self._made.extend(zip(map(made.at, range(len(statistics))), statistics, made.random, strict=True))

    def next(self) -> tuple[S, Statistics]:
        """Remove and return the first iteration."""
        state, statistics, self._random = self._made.popleft()
        return state, statistics

    def forget(self, random: torch.Generator) -> None:
        """Discard all iterations and reset the generator to its state after the last one returned."""
        if self._made and self._random is not None:
            random.set_state(self._random)
        self._made.clear()
