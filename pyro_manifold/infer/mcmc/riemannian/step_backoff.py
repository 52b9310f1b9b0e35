"""Step size of MSD, with per-chain backoff during warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.riemannian.trajectory import RUNAWAY_THRESHOLD, LagrangianSettings
from pyro_manifold.infer.mcmc.transitions.states import Statistics
from pyro_manifold.infer.mcmc.transitions.step_backoff import StepBackoff
from pyro_manifold.store.saving import Saved


class BackoffSteps(Saved):
    """Fixed step size ε, reduced per chain by `StepBackoff` during warm-up.

    At the start of chains, the metric can vary over a fraction of the step that suits the posterior. In the first half
    of warm-up there is no Metropolis test, since it would slow the initial loss of energy. All draws use the full ε,
    and the test if there is one.

    Args:
        step_size: ε.
        num_steps: number of leapfrog steps of a trajectory.
        adjusted: whether there is a Metropolis test.
        warmup_steps: iterations with reduced steps.
        energy: energies of the chains, ``(chains,)``, used for dtype and device.
    """

    changing = ("_backoff",)

    def __init__(self, step_size: float, num_steps: int, adjusted: bool, warmup_steps: int, energy: Tensor) -> None:
        self._step_size, self._num_steps = torch.full_like(energy, step_size), num_steps
        self._adjusted = adjusted
        self._warmup_steps = warmup_steps
        self._backoff = StepBackoff(energy)

    def settings(self, iteration: int) -> LagrangianSettings:
        """Return the settings of this iteration, counted from 1."""
        if iteration > self._warmup_steps:
            return LagrangianSettings(self._step_size, self._num_steps, self._adjusted)
        adjusted = self._adjusted and 2 * iteration > self._warmup_steps
        return LagrangianSettings(self._step_size * self._backoff.share, self._num_steps, adjusted)

    def learn(self, _iteration: int, _before: object, _after: object, statistics: Statistics, *_: object) -> None:
        """Adapt to one trajectory of all chains."""
        self._backoff.learn((statistics["energy_error"] > RUNAWAY_THRESHOLD) & ~statistics["accepted"])
