"""Warm-up of HMC: the schedule of adapting step size, masses and trajectory length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.arrival import (
    left_behind,
    of_chains,
    representatives,
    warn_of_chains_left,
    warn_of_collapse,
)
from pyro_manifold.infer.mcmc.adaptation.lengths import (
    INITIAL_LENGTH,
    MAXIMUM_STEPS,
    MAXIMUM_STEPS_BEFORE_MASSES,
    MAXIMUM_STEPS_OF_A_TRIAL,
    LengthChoice,
    TrajectoryLength,
)
from pyro_manifold.infer.mcmc.adaptation.masses import Masses
from pyro_manifold.infer.mcmc.adaptation.step_backoff import StepBackoff
from pyro_manifold.infer.mcmc.adaptation.step_size import FEWEST_STEPS, DualAveragingStepSize
from pyro_manifold.infer.mcmc.adaptation.windows import SHORT, windows
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, Metrics, State
from pyro_manifold.infer.mcmc.transitions import ChainState, Statistics, coordinates
from pyro_manifold.store import Saved

_FAILED_ACCEPTANCE = 0.1  # acceptance probability below which a chain's share of ε is reduced
_FEWEST_MOMENTA = 16
_PATIENCE = 10  # iterations; twice the number that a chain needs to return to the full ε after a reduction

_OTHER_MASSES = 1.5
"""Factor of change in periods above which the chosen length is discarded. For chains in the typical set the factor is
1.0 to 1.3; it is larger while they still move towards it. A larger change means that a length tuned for the previous
masses does not apply to the new ones. (While chains still travel, long trajectories help.)"""

AcceptanceOfOneStep = Callable[[State, float, Metrics, torch.Generator], float]
"""Mean acceptance probability of a trajectory of one step of size ε, with fresh momenta."""


@dataclass(frozen=True)
class AdaptationSettings:
    """User settings of step size, masses and trajectory lengths; see `OHMC`.

    Attributes:
        step_size: initial ε.
        trajectory_length: mean trajectory length; None to adapt it.
        num_steps: a fixed number of leapfrog steps instead; None if not given.
        trajectory_jitter: lengths vary by at most this fraction of their mean.
        adapt_step_size: whether ε is adapted.
        adapt_mass_matrix: whether masses are adapted.
        target_accept_prob: target acceptance probability of the adaptation of ε.
        step_size_bounds: bounds of ε; the trajectory length is a further upper bound.
        persistence: fraction of the momentum that is kept from one trajectory to the next.
        length_found: mean length found by an earlier run, used as initial value.
        found: whether step size and masses are those of an earlier run, which need no warm-up.
    """

    step_size: float
    trajectory_length: float | None
    num_steps: int | None
    trajectory_jitter: float
    adapt_step_size: bool
    adapt_mass_matrix: bool
    target_accept_prob: float
    step_size_bounds: tuple[float, float]
    persistence: float
    length_found: float | None = None
    found: bool = False

    @property
    def chooses_length(self) -> bool:
        """True if warm-up chooses the trajectory length."""
        return self.trajectory_length is None and self.num_steps is None

    def windows(self, warmup_steps: int) -> list[range]:
        """Return the windows of warm-up; none if neither step size nor masses are adapted."""
        return windows(warmup_steps) if self.adapt_step_size or self.adapt_mass_matrix else []

    def tries_lengths(self, warmup_steps: int) -> bool:
        """Return whether the trajectory length is chosen in a warm-up of so many iterations."""
        return self.chooses_length and len(self.windows(warmup_steps)) > 2

    def lengths(self) -> TrajectoryLength:
        """Return the initial distribution of trajectory lengths."""
        if self.num_steps is None:
            length = self.trajectory_length or self.length_found or INITIAL_LENGTH
            return TrajectoryLength(length, self.trajectory_jitter)
        length = self.trajectory_length or self.step_size * self.num_steps
        return TrajectoryLength(length, 0.0, max(MAXIMUM_STEPS, self.num_steps))


class WarmUp(Saved):
    """Step size, masses and trajectory length, adapted during warm-up on all chains jointly.

    A chain whose trajectories are rejected uses a fraction of ε (per-chain backoff, `StepBackoff`), and ε adapts
    to the chains that use all of it. Chains that have not reached the typical set thus neither reduce the step size of
    the others nor get stuck. In the last window all chains use the same step size, that of sampling. Nothing is learned
    from chains that are left far above the others (`left_behind`).

    Masses are estimated at the end of each window, as in Pyro and Stan. If no trajectory length was given, it is chosen
    from the transitions of all windows but the first two and the last. Momenta are fully refreshed whenever masses
    change.

    Args:
        plan: user settings.
        warmup_steps: iterations of warm-up.
        state: initial state of the chains.
        masses: initial masses.
        acceptance_of_one_step: acceptance probability of one leapfrog step, for the search of the initial step size.
        random: random number generator for that search.
        functionals: functionals of a state by which the trajectory length is chosen.

    Attributes:
        masses: masses of all blocks.
        length_choice: adaptation of the trajectory length, used if none was given.
    """

    changing = (
        "masses",
        "_step_size",
        "_lengths",
        "length_choice",
        "_momenta_fit",
        "_backoff",
        "_iterations_without_full_step",
    )

    def __init__(
        self,
        plan: AdaptationSettings,
        warmup_steps: int,
        state: State,
        masses: Masses,
        acceptance_of_one_step: AcceptanceOfOneStep,
        random: torch.Generator,
        functionals: Callable[[ChainState], Tensor] = coordinates,
    ) -> None:
        self._plan = plan
        self._coordinates = sum(x[0].numel() for x in state.position.values())
        self._acceptance_of_one_step = acceptance_of_one_step
        self._warmup_steps = warmup_steps
        self._windows = plan.windows(warmup_steps)
        self._tries_lengths = plan.tries_lengths(warmup_steps)
        self._lengths = plan.lengths()
        self.length_choice = LengthChoice(self._lengths, state, functionals)
        self._integration_time = self._lengths.mean
        self._step_size = DualAveragingStepSize(plan.step_size, plan.target_accept_prob, plan.step_size_bounds)
        self.masses = masses
        self._momenta_fit = False
        self._backoff = StepBackoff(state.energy)
        self._iterations_without_full_step = 0  # iterations since any chain last used the full ε
        if plan.adapt_step_size and (warmup_steps or not plan.found):
            self._search(state, random)
            if not warmup_steps:
                self._step_size.settle()

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self._lengths.mean

    @property
    def step_size(self) -> float:
        """Current ε, at most the trajectory length."""
        return self._step_size.bounded(self.trajectory_length)

    @property
    def num_steps(self) -> int:
        """Number of leapfrog steps of a trajectory of mean length."""
        return self._lengths.steps_of(self.trajectory_length, self.step_size)

    @property
    def example(self) -> HamiltonianSettings:
        """Settings of a typical iteration."""
        return HamiltonianSettings(self.step_size, self.num_steps, self.masses.metrics, self._plan.persistence)

    def learn_cost(self, fixed_cost: float) -> None:
        """Set the fixed cost of an iteration in leapfrog steps; a larger one favours long trajectories."""
        self.length_choice.fixed_cost = fixed_cost

    def settings(self, iteration: int) -> HamiltonianSettings:
        """Return the settings of the trajectory of this iteration, counted from 1."""
        longest = None
        self._integration_time = self._lengths.draw(iteration)
        if self._records_lengths(iteration):
            self._integration_time, longest = self.length_choice.draw(iteration), MAXIMUM_STEPS_OF_A_TRIAL
        if self._plan.adapt_mass_matrix and iteration <= self._warmup_steps:
            cap = MAXIMUM_STEPS_BEFORE_MASSES * 2 ** (self.masses.windows_completed / 2)
            longest = min(int(cap), longest or self._lengths.longest)
        step_size = self.step_size
        if iteration <= self._warmup_steps and self._plan.chooses_length:
            # The number of steps follows the smoothed ε: while the current ε oscillates to small values, a few
            # iterations could otherwise cost as much as all draws.
            step_size = max(step_size, self._step_size.typical)
        num_steps = self._lengths.steps_of(self._integration_time, step_size, longest)
        # The trajectory is shorter if there are fewer steps than assumed above, or shorter ones.
        shortened = self._integration_time * self.step_size / step_size
        self._integration_time = min(shortened, (num_steps + 1) * self.step_size)
        persistence = self._plan.persistence if self._momenta_fit else 0.0
        self._momenta_fit = True
        return HamiltonianSettings(self._steps_of_chains(iteration), num_steps, self.masses.metrics, persistence)

    def learn(
        self, iteration: int, before: State, after: State, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Adapt to one trajectory of all chains."""
        energy = after.energy
        left = left_behind(energy, self._coordinates)
        if bool(left.any()):
            before, after = (of_chains(state, representatives(left)) for state in (before, after))
        if self._records_lengths(iteration):
            self.length_choice.update(self._integration_time, int(statistics["n_steps"][0]), before, after)
            if any(iteration == window.stop for window in self._windows[2:-1]):
                self.length_choice.choose()
                self.length_choice.end_window()
        if self._plan.adapt_step_size:
            self._learn_step_size(iteration, statistics, ~left)
        if self._plan.adapt_mass_matrix:
            for window in self._windows[1:-1]:
                if iteration - 1 in window:
                    self.masses.update(after.position, after.gradient)
                if iteration == window.stop:
                    self._end_window(after, random)
        if iteration == self._warmup_steps:
            self._end(energy)

    def _backs_off(self, iteration: int) -> bool:
        """Return whether ε adapts with per-chain backoff; in the last window all chains use the same ε."""
        return self._plan.adapt_step_size and iteration - 1 < self._windows[-1].start

    def _steps_of_chains(self, iteration: int) -> Tensor | float:
        return self.step_size * self._backoff.share if self._backs_off(iteration) else self.step_size

    def _end(self, energy: Tensor) -> None:
        if self._warmup_steps >= SHORT:  # else chains may still be on their way
            warn_of_chains_left(energy, self._coordinates)
        if self._plan.adapt_step_size:
            self._step_size.settle()
            warn_of_collapse(self.step_size, self.num_steps, self.trajectory_length)

    def _learn_step_size(self, iteration: int, statistics: Statistics, arrived: Tensor) -> None:
        acceptance = statistics["acceptance_rate"]
        if self._backs_off(iteration):
            share = self._backoff.share
            self._backoff.learn(acceptance < _FAILED_ACCEPTANCE)
            self._iterations_without_full_step = (
                0 if bool((share[arrived] == 1).any()) else self._iterations_without_full_step + 1
            )
            if 0 < self._iterations_without_full_step <= _PATIENCE:
                return
            # If no chain uses the full ε, it is too large for all: adapt to the chains that use the largest share.
            acceptance = (share * acceptance)[arrived & (share == share[arrived].max())]
        else:
            acceptance = acceptance[arrived]
        probability = float(acceptance.mean())
        # At its upper bound the step size must not be increased further: the dual average would lag behind.
        if self._step_size.value >= self.trajectory_length:
            probability = min(probability, self._plan.target_accept_prob)
        self._step_size.update(probability)

    def _end_window(self, state: State, random: torch.Generator) -> None:
        changed = self.masses.end_window()
        self._momenta_fit = False
        is_last = self.masses.windows_completed == len(self._windows) - 2
        if self._plan.chooses_length and is_last and changed > _OTHER_MASSES:
            self.length_choice.reset()
        if self._plan.adapt_step_size:
            self._search(state, random)

    def _search(self, state: State, random: torch.Generator) -> None:
        # The step size found for a short last window is final: a single momentum of one chain would be too noisy.
        trials = math.ceil(_FEWEST_MOMENTA / len(state.energy)) if len(self._windows[-1]) < FEWEST_STEPS else 1

        state = of_chains(state, representatives(left_behind(state.energy, self._coordinates)))

        def acceptance(step_size: float) -> float:
            ask = partial(self._acceptance_of_one_step, state, step_size, self.masses.metrics, random)
            return sum(ask() for _ in range(trials)) / trials

        self._step_size.search(acceptance, self.trajectory_length)

    @property
    def _masses_pending(self) -> bool:
        return self._plan.adapt_mass_matrix and self.masses.windows_completed == 0

    def _records_lengths(self, iteration: int) -> bool:
        """Return whether this iteration is used to choose the trajectory length.

        That is the case in all windows that estimate masses except the first, since the optimal length depends on the
        masses, and not in the last window, in which ε is adapted to the final lengths.
        """
        return (
            self._tries_lengths
            and self._windows[2].start <= iteration - 1 < self._windows[-1].start
            and not self._masses_pending
        )
