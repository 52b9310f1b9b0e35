"""Adapter of step sizes: one for all chains, and less of it for chains whose trajectories fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.adapter import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.step_size import FEWEST_STEPS, DualAveragingStepSize
from pyro_manifold.infer.mcmc.transitions import Statistics

T = TypeVar("T")

_FEWEST_MOMENTA = 16

AcceptanceOfOneStep = Callable[[Any, float, torch.Generator], float]
"""Mean acceptance probability of a trajectory of one step of size ε from a state, with fresh momenta."""


class ChainStepSizes(Adapter[T]):
    """Step size ε of all chains, adapted to a mean acceptance probability, with per-chain backoff.

    At the start of chains, the gradient can be a thousand times as large as in the typical set. With a common step
    size, either chains in the typical set would move slowly, or the others would not move at all. A failed trajectory
    therefore halves the share of ε that a chain uses, any other increases it by a fifth, to at most 1. ε adapts to the
    chains that use all of it; if none does for some iterations, ε is too large for all, and adapts to those that use
    the largest share.

    Args:
        rule: dual averaging of ε.
        energy: energies of the chains, ``(chains,)``, used for dtype and device.
        longest: returns the upper bound of ε, that of trajectories.
        failed: function from the statistics of an iteration to the chains whose trajectory failed, ``(chains,)``.
        windows: windows of warm-up.
        adapting: iterations, counted from 0, in which ε is adapted.
        backing_off: iterations, counted from 0, in which chains use a share of ε.
        patience: number of iterations without a chain that uses all of ε before ε adapts to others.
        acceptance_of_one_step: for the search of ε; None for no search.
        search_again: whether ε is searched again at the ends of windows between the first and the last, where masses
            have changed.

    Attributes:
        rule: dual averaging of ε.
        share: fraction of ε used by each chain, ``(chains,)``, at most 1.
    """

    changing = ("rule", "share", "_iterations_without_full_step")

    def __init__(
        self,
        rule: DualAveragingStepSize,
        energy: Tensor,
        longest: Callable[[], float],
        failed: Callable[[Statistics], Tensor],
        windows: Sequence[range],
        *,
        adapting: range,
        backing_off: range,
        patience: int = 0,
        acceptance_of_one_step: AcceptanceOfOneStep | None = None,
        search_again: bool = False,
    ) -> None:
        self.rule, self._longest, self._failed, self._windows = rule, longest, failed, windows
        self._adapting, self._backing_off, self._patience = adapting, backing_off, patience
        self._acceptance_of_one_step, self._search_again = acceptance_of_one_step, search_again
        self.share = torch.ones_like(energy)
        self._iterations_without_full_step = 0  # iterations since any chain last used the full ε

    @property
    def value(self) -> float:
        """Current ε, at most the trajectory length."""
        return self.rule.bounded(self._longest())

    def contribute(self, settings: Any, iteration: int) -> Any:
        return settings._replace(step_size=self.value * self.share if self._backs_off(iteration) else self.value)

    def learn(self, seen: WarmUpIteration) -> None:
        acceptance, arrived = seen.statistics["acceptance_rate"], seen.arrived
        arrived = torch.ones_like(acceptance, dtype=torch.bool) if arrived is None else arrived
        failed = self._failed(seen.statistics) if self._backs_off(seen.number) else None
        if failed is not None and bool(failed.any() | (self.share < 1).any()):
            share = self.share
            self.share = torch.where(failed, share / 2, 1.2 * share).clamp(max=1)
            full = bool((share[arrived] == 1).any())
            self._iterations_without_full_step = 0 if full else self._iterations_without_full_step + 1
            if 0 < self._iterations_without_full_step <= self._patience:
                return
            acceptance = (share * acceptance)[arrived & (share == share[arrived].max())]
        else:  # full steps, of all chains
            self._iterations_without_full_step = 0
            acceptance = acceptance[arrived]
        if seen.number - 1 in self._adapting:
            # At its upper bound ε must not be increased further: the dual average would lag behind.
            at_most = self.rule.target if self.rule.value >= self._longest() else math.inf
            self.rule.update(min(float(acceptance.mean()), at_most))

    def end_window(self, seen: WarmUpIteration) -> None:
        if seen.number - 1 not in self._adapting:
            return
        if seen.number == self._adapting.stop:
            self.rule.settle()
        elif seen.window and self._search_again:
            self.search(seen.after, seen.random)

    def search(self, state: Any, random: torch.Generator) -> None:
        """Search the order of magnitude of ε from a state."""
        acceptance_of_one_step = self._acceptance_of_one_step
        if acceptance_of_one_step is None:
            return
        # The step size found for a short last window is final: a single momentum of one chain would be too noisy.
        few = len(self._windows[-1]) < FEWEST_STEPS
        trials = math.ceil(_FEWEST_MOMENTA / len(self.share)) if few else 1

        def acceptance(step_size: float) -> float:
            return sum(acceptance_of_one_step(state, step_size, random) for _ in range(trials)) / trials

        self.rule.search(acceptance, self._longest())

    def _backs_off(self, iteration: int) -> bool:
        return iteration - 1 in self._backing_off
