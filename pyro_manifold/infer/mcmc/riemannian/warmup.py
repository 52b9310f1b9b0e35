"""Warm-up of MSD: adaptation of the step size, with per-chain backoff."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation import FEWEST_STEPS, DualAveragingStepSize, StepBackoff
from pyro_manifold.infer.mcmc.riemannian.trajectory import RUNAWAY_THRESHOLD, LagrangianSettings
from pyro_manifold.infer.mcmc.transitions import Statistics
from pyro_manifold.store import Saved

LONGEST = math.pi / 2
"""Longest trajectory that the adaptation allows: a quarter period in a Gaussian posterior, after which a draw with a
fresh momentum is independent of the last one. At half a period it would be its mirror image at any acceptance."""


class WarmUp(Saved):
    """Step size ε, adapted in the second half of warm-up, and reduced per chain by `StepBackoff`.

    At the start of chains, the metric can vary over a fraction of the step that suits the posterior. In the first half
    of warm-up there is no Metropolis test, since it would slow the initial loss of energy, and hence no acceptance
    probability to adapt to. All draws use the full ε, and the test if there is one.

    Args:
        step_size: initial ε.
        num_steps: number of leapfrog steps of a trajectory.
        adjusted: whether there is a Metropolis test.
        warmup_steps: iterations of warm-up.
        energy: energies of the chains, ``(chains,)``, used for dtype and device.
        target_accept_prob: target acceptance probability of the adaptation; None to keep ε fixed. ε is kept as well
            if the second half of warm-up has fewer than 10 iterations.
    """

    changing = ("_backoff", "_step_size")

    def __init__(
        self,
        step_size: float,
        num_steps: int,
        adjusted: bool,
        warmup_steps: int,
        energy: Tensor,
        target_accept_prob: float | None = None,
    ) -> None:
        self._num_steps, self._adjusted, self._warmup_steps = num_steps, adjusted, warmup_steps
        self._backoff, self._one = StepBackoff(energy), torch.ones_like(energy)
        # Iterations of the adaptation, counted from 1: the second half.
        self._adapting = range(warmup_steps // 2 + 1, warmup_steps + 1)
        if target_accept_prob is None or len(self._adapting) < FEWEST_STEPS:
            self._adapting = range(0)
        self._longest = LONGEST / num_steps if self._adapting else math.inf
        self._target = 1.0 if target_accept_prob is None else target_accept_prob
        self._step_size = DualAveragingStepSize(min(step_size, self._longest), self._target, (0.0, self._longest))

    @property
    def step_size(self) -> float:
        """Current ε."""
        return self._step_size.bounded(self._longest)

    def settings(self, iteration: int) -> LagrangianSettings:
        """Return the settings of this iteration, counted from 1."""
        warming = iteration <= self._warmup_steps
        share = self._backoff.share if warming else self._one
        adjusted = self._adjusted and not (warming and 2 * iteration <= self._warmup_steps)
        return LagrangianSettings(self.step_size * share, self._num_steps, adjusted)

    def learn(self, iteration: int, _before: object, _after: object, statistics: Statistics, *_: object) -> None:
        """Adapt to one trajectory of all chains."""
        share = self._backoff.share
        self._backoff.learn((statistics["energy_error"] > RUNAWAY_THRESHOLD) & ~statistics["accepted"])
        if iteration in self._adapting:
            # If no chain uses the full ε, it is too large for all: adapt to the chains that use the largest share.
            acceptance = float((share * statistics["acceptance_rate"])[share == share.max()].mean())
            if self._step_size.value >= self._longest:  # the dual average would lag behind a further increase
                acceptance = min(acceptance, self._target)
            self._step_size.update(acceptance)
            if iteration == self._warmup_steps:
                self._step_size.settle()
