"""The protocol of adaptation: adapters contribute to the settings of iterations, and learn from those of warm-up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions import Statistics
from pyro_manifold.store import Saved

T = TypeVar("T")


class WarmUpIteration(NamedTuple):
    """An iteration of warm-up, from which adapters learn.

    Attributes:
        number: number of the iteration, from 1.
        window: number of its window, from 0.
        before: state of the chains before the last transition.
        after: state after it.
        statistics: statistics of all transitions.
        random: random number generator of the run.
        arrived: chains from which is learned, ``(chains,)``; None for all. In ``before`` and ``after``, others stand
            in place of those that are left.
    """

    number: int
    window: int
    before: Any
    after: Any
    statistics: Statistics
    random: torch.Generator
    arrived: Tensor | None = None


class Adapter(Saved, Generic[T]):
    """Part of the adaptation of a run, such as that of step sizes or of masses. By default it does nothing."""

    def contribute(self, settings: T, iteration: int) -> T:
        """Return the settings of an iteration, counted from 1, with the entries of this adapter."""
        return settings

    def learn(self, seen: WarmUpIteration) -> None:
        """Learn from an iteration of warm-up."""

    def end_window(self, seen: WarmUpIteration) -> None:
        """End the window whose last iteration this is, of which all adapters have learned."""


class Adaptation(Saved, Generic[T]):
    """Adaptation of a run by adapters, each of which contributes to the settings in turn.

    Subclasses define `initial_settings`.

    Args:
        windows: windows of warm-up, of iterations counted from 0; none if nothing is learned.
        adapters: the adapters by name, in the order in which they contribute, learn and end windows.
    """

    changing: ClassVar[tuple[str, ...]] = ("adapters",)

    def __init__(self, windows: Sequence[range], adapters: Mapping[str, Adapter[T]]) -> None:
        self._windows, self.adapters = windows, dict(adapters)

    @abstractmethod
    def initial_settings(self, iteration: int) -> T:
        """Return the settings of an iteration, counted from 1, to which adapters contribute."""

    def settings(self, iteration: int) -> T:
        """Return the settings of an iteration, counted from 1."""
        settings = self.initial_settings(iteration)
        for adapter in self.adapters.values():
            settings = adapter.contribute(settings, iteration)
        return settings

    def learn(self, iteration: int, before: Any, after: Any, statistics: Statistics, random: torch.Generator) -> None:
        """Adapt to one iteration of warm-up of all chains."""
        for number, window in enumerate(self._windows):
            if iteration - 1 in window:
                self._learn(WarmUpIteration(iteration, number, before, after, statistics, random))

    def _learn(self, seen: WarmUpIteration) -> None:
        for adapter in self.adapters.values():
            adapter.learn(seen)
        if seen.number == self._windows[seen.window].stop:
            for adapter in self.adapters.values():
                adapter.end_window(seen)
