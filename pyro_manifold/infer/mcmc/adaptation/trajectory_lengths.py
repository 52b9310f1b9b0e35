"""Adapter of trajectory lengths: the number of steps of each trajectory, and the choice of their mean length."""

from __future__ import annotations

from collections.abc import Sequence

from pyro_manifold.infer.mcmc.adaptation.adapter import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.arrival import representatives
from pyro_manifold.infer.mcmc.adaptation.chain_step_sizes import ChainStepSizes
from pyro_manifold.infer.mcmc.adaptation.lengths import (
    MAXIMUM_STEPS_BEFORE_MASSES,
    MAXIMUM_STEPS_OF_A_TRIAL,
    LengthChoice,
    TrajectoryLength,
)
from pyro_manifold.infer.mcmc.adaptation.masses import Masses
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings

_OTHER_MASSES = 1.5
"""Factor of change in periods above which the chosen length is discarded. For chains in the typical set the factor is
1.0 to 1.3; it is larger while they still move towards it. A larger change means that a length tuned for the previous
masses does not apply to the new ones. (While chains still travel, long trajectories help.)"""


class TrajectoryLengths(Adapter[HamiltonianSettings]):
    """Number of steps of trajectories; if no length is given, it is chosen from the transitions of warm-up.

    The mean length is chosen in all windows that estimate masses except the first, since the optimal length depends on
    the masses, and not in the last window, in which ε is adapted to the final lengths.

    Args:
        distribution: distribution of lengths.
        choice: choice of their mean.
        step_sizes: adapter of step sizes.
        masses: adapter of masses.
        windows: windows of warm-up.
        chosen: whether the mean length is chosen.
    """

    changing = ("distribution", "choice")

    def __init__(
        self,
        distribution: TrajectoryLength,
        choice: LengthChoice,
        step_sizes: ChainStepSizes[HamiltonianSettings],
        masses: Masses,
        windows: Sequence[range],
        chosen: bool,
    ) -> None:
        self.distribution, self.choice = distribution, choice
        self._step_sizes, self._masses, self._windows, self._chosen = step_sizes, masses, windows, chosen
        self._warmup_steps = windows[-1].stop if windows else 0
        self._integration_time = distribution.mean

    @property
    def num_steps(self) -> int:
        """Number of leapfrog steps of a trajectory of mean length."""
        return self.distribution.steps_of(self.distribution.mean, self._step_sizes.value)

    def contribute(self, settings: HamiltonianSettings, iteration: int) -> HamiltonianSettings:
        lengths, longest, warming = self.distribution, None, iteration <= self._warmup_steps
        self._integration_time = lengths.draw(iteration)
        if self._records(iteration):
            self._integration_time, longest = self.choice.draw(iteration), MAXIMUM_STEPS_OF_A_TRIAL
        if warming and self._masses.adapting:
            cap = MAXIMUM_STEPS_BEFORE_MASSES * 2 ** (self._masses.windows_completed / 2)
            longest = min(int(cap), longest or lengths.longest)
        actual = step_size = self._step_sizes.value
        if warming and self._chosen:
            # The number of steps follows the smoothed ε: while the current ε oscillates to small values, a few
            # iterations could otherwise cost as much as all draws.
            step_size = max(actual, self._step_sizes.rule.typical)
        num_steps = lengths.steps_of(self._integration_time, step_size, longest)
        # The trajectory is shorter if there are fewer steps than assumed above, or shorter ones.
        self._integration_time = min(self._integration_time * actual / step_size, (num_steps + 1) * actual)
        return settings._replace(num_steps=num_steps)

    def learn(self, seen: WarmUpIteration) -> None:
        if not self._records(seen.number):
            return
        reflected = seen.statistics.get("reflected")
        if reflected is not None and seen.arrived is not None:
            reflected = reflected[representatives(~seen.arrived)]
        moved = None if reflected is None else ~reflected
        steps = int(seen.statistics["n_steps"][0])
        self.choice.update(self._integration_time, steps, seen.before, seen.after, moved)

    def end_window(self, seen: WarmUpIteration) -> None:
        if self._records(seen.number):
            self.choice.choose()
            self.choice.end_window()
        last_of_masses = len(self._windows) - 2
        if self._chosen and seen.window == last_of_masses and self._masses.change > _OTHER_MASSES:
            self.choice.reset()

    def _records(self, iteration: int) -> bool:
        """Return whether this iteration is used to choose the trajectory length."""
        if not self._chosen or len(self._windows) < 3:
            return False
        return self._windows[2].start <= iteration - 1 < self._windows[-1].start
