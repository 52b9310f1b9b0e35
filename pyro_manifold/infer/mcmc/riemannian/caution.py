"""The step size of MSD, shorter during warm-up for chains that go wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.caution import Caution
from pyro_manifold.infer.mcmc.riemannian.trajectory import RUNAWAY_THRESHOLD, LagrangianSettings
from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.states import Statistics


class CautiousSteps(Saved):
    """ε for all draws; while warming up, the share of it that `Caution` leaves each chain.

    Where chains start, the metric can turn within a fraction of the step that suits the posterior. And in the first
    half of warm-up there is no Metropolis test, for chains must lose energy faster than it lets them. All draws are
    made with the whole step, and with the test if there is one.

    Args:
        step_size: ε.
        adjusted: whether there is a Metropolis test.
        warmup_steps: iterations that are cautious.
        energy: of the chains, ``(chains,)``, for dtype and device.
    """

    changing = ("_caution",)

    def __init__(self, step_size: float, adjusted: bool, warmup_steps: int, energy: Tensor) -> None:
        self._step_size = torch.full_like(energy, step_size)
        self._adjusted = adjusted
        self._warmup_steps = warmup_steps
        self._caution = Caution(energy)

    def settings(self, iteration: int) -> LagrangianSettings:
        """Settings of this iteration, counted from 1."""
        if iteration > self._warmup_steps:
            return LagrangianSettings(self._step_size, self._adjusted)
        adjusted = self._adjusted and 2 * iteration > self._warmup_steps
        return LagrangianSettings(self._step_size * self._caution.share, adjusted)

    def learn(self, _iteration: int, _before: object, _after: object, statistics: Statistics, *_: object) -> None:
        """Take in one trajectory of all chains."""
        self._caution.learn((statistics["energy_error"] > RUNAWAY_THRESHOLD) & ~statistics["accepted"])
