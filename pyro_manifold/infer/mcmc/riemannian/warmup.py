"""Warm-up of MSD: adaptation of the step size, with per-chain backoff."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation import FEWEST_STEPS, Adaptation, ChainStepSizes, DualAveragingStepSize
from pyro_manifold.infer.mcmc.riemannian.trajectory import RUNAWAY_THRESHOLD, LagrangianSettings
from pyro_manifold.infer.mcmc.transitions import Statistics

LONGEST = math.pi / 2
"""Longest trajectory that the adaptation allows: a quarter period in a Gaussian posterior, after which a draw with a
fresh momentum is independent of the last one. At half a period it would be its mirror image at any acceptance."""


class WarmUp(Adaptation[LagrangianSettings]):
    """Step size ε, adapted in the second half of warm-up, and reduced for single chains as in `ChainStepSizes`.

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

    Attributes:
        step_sizes: adapter of ε.
    """

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
        adapting, warming = range(warmup_steps // 2, warmup_steps), range(warmup_steps)
        if target_accept_prob is None or len(adapting) < FEWEST_STEPS:
            adapting = range(0)
        longest = LONGEST / num_steps if adapting else math.inf
        target = 1.0 if target_accept_prob is None else target_accept_prob
        self.step_sizes: ChainStepSizes[LagrangianSettings] = ChainStepSizes(
            DualAveragingStepSize(min(step_size, longest), target, (0.0, longest), len(energy)),
            energy,
            partial(float, longest),
            _has_failed,
            [warming],
            adapting=adapting,
            backing_off=warming,
        )
        super().__init__([warming], {"step_sizes": self.step_sizes})

    @property
    def step_size(self) -> float:
        """Current ε."""
        return self.step_sizes.value

    def initial_settings(self, iteration: int) -> LagrangianSettings:
        unadjusted = 2 * iteration <= self._warmup_steps  # in the first half of warm-up
        return LagrangianSettings(self.step_size, self._num_steps, self._adjusted and not unadjusted)


def _has_failed(statistics: Statistics) -> Tensor:
    return (statistics["energy_error"] > RUNAWAY_THRESHOLD) & ~statistics["accepted"]
