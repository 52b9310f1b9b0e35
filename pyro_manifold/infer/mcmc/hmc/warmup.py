"""All that HMC tunes, and when: step size, masses and trajectory length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.caution import Caution
from pyro_manifold.infer.mcmc.hmc.leapfrog import Metrics, State
from pyro_manifold.infer.mcmc.hmc.lengths import (
    INITIAL_LENGTH,
    MAXIMUM_STEPS,
    MAXIMUM_STEPS_BEFORE_MASSES,
    MAXIMUM_STEPS_OF_A_TRIAL,
    LengthChoice,
    TrajectoryLength,
)
from pyro_manifold.infer.mcmc.hmc.masses import Masses
from pyro_manifold.infer.mcmc.hmc.step_size import FEWEST_STEPS, StepSize, windows
from pyro_manifold.infer.mcmc.hmc.trajectory import HamiltonianSettings
from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.states import Statistics

_GONE_WRONG = 0.1  # acceptance probability
_FEWEST_MOMENTA = 16
_PATIENCE = 10  # iterations, twice of what a chain needs to take all of ε again after it went wrong

_OTHER_MASSES = 1.5
"""Factor by which periods change while chains travel; among chains that have arrived it is 1.0 to 1.3. Beyond it, the
length that suits the masses before the last says nothing of these. (While they travel on, long trajectories help.)"""

AcceptanceOfOneStep = Callable[[State, float, Metrics, torch.Generator], float]
"""Mean acceptance probability of a trajectory of one step of size ε, with fresh momenta."""


@dataclass(frozen=True)
class Plan:
    """What the user asked of step size, masses and lengths; see `OHMC`.

    Attributes:
        step_size: ε to begin with.
        trajectory_length: mean length, None to choose it.
        num_steps: a fixed number of steps instead, None for none.
        trajectory_jitter: lengths vary within this share of their mean.
        adapt_step_size: whether ε adapts.
        adapt_mass_matrix: whether masses adapt.
        target_accept_prob: acceptance probability that ε aims at.
        step_size_bounds: bounds of ε; the length of a trajectory is another.
        persistence: share of the momentum that is kept from one trajectory to the next.
        length_found: mean length that an earlier run has found, to begin with.
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
        """Whether the length is left to warm-up."""
        return self.trajectory_length is None and self.num_steps is None

    def lengths(self) -> TrajectoryLength:
        """Lengths to begin with."""
        if self.num_steps is None:
            length = self.trajectory_length or self.length_found or INITIAL_LENGTH
            return TrajectoryLength(length, self.trajectory_jitter)
        length = self.trajectory_length or self.step_size * self.num_steps
        return TrajectoryLength(length, 0.0, max(MAXIMUM_STEPS, self.num_steps))


class WarmUp(Saved):
    """Step size, masses and trajectory length; the first iterations adapt them, on all chains together.

    A chain whose trajectory goes wrong takes a share of ε (`Caution`), and ε learns from those that take all of it:
    neither do chains that have not arrived make the others creep, nor do they stay where they are. In the last window
    all take the same step, that of the draws.

    Masses are estimated anew at the end of each window, as in Pyro and Stan. The transitions of each window but the
    first two also serve to choose the length, if none was given. Momenta are drawn anew whenever masses are new.

    Args:
        plan: what to adapt.
        warmup_steps: iterations that adapt.
        state: where the chains start.
        masses: to begin with.
        acceptance_of_one_step: tries a step size.
        random: for that.

    Attributes:
        masses: of all blocks.
        length_choice: tries lengths, where none was given.
    """

    changing = ("masses", "_step_size", "_lengths", "length_choice", "_momenta_fit", "_caution", "_untried")

    def __init__(
        self,
        plan: Plan,
        warmup_steps: int,
        state: State,
        masses: Masses,
        acceptance_of_one_step: AcceptanceOfOneStep,
        random: torch.Generator,
    ) -> None:
        self._plan = plan
        self._acceptance_of_one_step = acceptance_of_one_step
        self._warmup_steps = warmup_steps
        self._windows = windows(warmup_steps) if plan.adapt_step_size or plan.adapt_mass_matrix else []
        self._lengths = plan.lengths()
        self.length_choice = LengthChoice(self._lengths, state)
        self._integration_time = self._lengths.mean
        self._step_size = StepSize(plan.step_size, plan.target_accept_prob, plan.step_size_bounds)
        self.masses = masses
        self._momenta_fit = False
        self._caution = Caution(state.energy)
        self._untried = 0  # iterations since a chain last took all of ε
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
        """Current ε; never longer than a trajectory."""
        return self._step_size.bounded(self.trajectory_length)

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory of mean length."""
        return self._lengths.steps_of(self.trajectory_length, self.step_size)

    @property
    def example(self) -> HamiltonianSettings:
        """Settings as most iterations have them."""
        return HamiltonianSettings(self.step_size, self.num_steps, self.masses.metrics, self._plan.persistence)

    def learn_cost(self, fixed_cost: float) -> None:
        """An iteration costs as much as so many steps beside its steps: long trajectories are cheaper for it."""
        self.length_choice.fixed_cost = fixed_cost

    def settings(self, iteration: int) -> HamiltonianSettings:
        """Settings of the trajectory of this iteration, counted from 1."""
        longest = None
        self._integration_time = self._lengths.draw(iteration)
        if self._listens(iteration):
            self._integration_time, longest = self.length_choice.draw(iteration), MAXIMUM_STEPS_OF_A_TRIAL
        if self._plan.adapt_mass_matrix and iteration <= self._warmup_steps:
            cap = MAXIMUM_STEPS_BEFORE_MASSES * 2 ** (self.masses.windows_completed / 2)
            longest = min(int(cap), longest or self._lengths.longest)
        step_size = self.step_size
        if iteration <= self._warmup_steps and self._plan.chooses_length:
            # While ε swings low, as many steps as a length deserves: a few iterations could cost as much as all draws.
            step_size = max(step_size, self._step_size.typical)
        num_steps = self._lengths.steps_of(self._integration_time, step_size, longest)
        # Shorter steps than were counted with, or fewer.
        shortened = self._integration_time * self.step_size / step_size
        self._integration_time = min(shortened, (num_steps + 1) * self.step_size)
        persistence = self._plan.persistence if self._momenta_fit else 0.0
        self._momenta_fit = True
        return HamiltonianSettings(self._steps_of_chains(iteration), num_steps, self.masses.metrics, persistence)

    def learn(
        self, iteration: int, before: State, after: State, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Learn from one trajectory of all chains."""
        if self._listens(iteration):
            self.length_choice.update(self._integration_time, int(statistics["n_steps"][0]), before, after)
            if any(iteration == window.stop for window in self._windows[2:-1]):
                self.length_choice.choose()
                self.length_choice.end_window()
        if self._plan.adapt_step_size:
            self._learn_step_size(iteration, statistics)
        if self._plan.adapt_mass_matrix:
            for window in self._windows[1:-1]:
                if iteration - 1 in window:
                    self.masses.update(after.position, after.gradient)
                if iteration == window.stop:
                    self._end_window(after, random)
        if iteration == self._warmup_steps and self._plan.adapt_step_size:
            self._step_size.settle()

    def _travels(self, iteration: int) -> bool:
        """Before the last window, in which ε settles for all chains alike."""
        return self._plan.adapt_step_size and iteration - 1 < self._windows[-1].start

    def _steps_of_chains(self, iteration: int) -> Tensor | float:
        return self.step_size * self._caution.share if self._travels(iteration) else self.step_size

    def _learn_step_size(self, iteration: int, statistics: Statistics) -> None:
        acceptance = statistics["acceptance_rate"]
        if self._travels(iteration):
            share = self._caution.share
            self._caution.learn(acceptance < _GONE_WRONG)
            self._untried = 0 if bool((share == 1).any()) else self._untried + 1
            if 0 < self._untried <= _PATIENCE:
                return
            # ε that nobody dares to take is too long for all; the boldest say by how much.
            acceptance = (share * acceptance)[share == share.max()]
        probability = float(acceptance.mean())
        # At its upper bound the step size must not be pushed on: the dual average would lag behind.
        if self._step_size.value >= self.trajectory_length:
            probability = min(probability, self._plan.target_accept_prob)
        self._step_size.update(probability)

    def _end_window(self, state: State, random: torch.Generator) -> None:
        changed = self.masses.end_window()
        self._momenta_fit = False
        is_last = self.masses.windows_completed == len(self._windows) - 2
        if self._plan.chooses_length and is_last and changed > _OTHER_MASSES:
            self.length_choice.begin_anew()
        if self._plan.adapt_step_size:
            self._search(state, random)

    def _search(self, state: State, random: torch.Generator) -> None:
        # What is found for a short last window stays: one momentum of one chain would be too few to ask.
        trials = math.ceil(_FEWEST_MOMENTA / len(state.energy)) if len(self._windows[-1]) < FEWEST_STEPS else 1

        def acceptance(step_size: float) -> float:
            ask = partial(self._acceptance_of_one_step, state, step_size, self.masses.metrics, random)
            return sum(ask() for _ in range(trials)) / trials

        self._step_size.search(acceptance, self.trajectory_length)

    @property
    def _masses_pending(self) -> bool:
        return self._plan.adapt_mass_matrix and self.masses.windows_completed == 0

    def _listens(self, iteration: int) -> bool:
        """In all windows that estimate masses but the first: what lengths mean depends on the masses.

        Not in the last one: there ε settles for the lengths that will be used.
        """
        return (
            self._plan.chooses_length
            and len(self._windows) > 2
            and self._windows[2].start <= iteration - 1 < self._windows[-1].start
            and not self._masses_pending
        )
