"""All that a kernel tunes: step size, masses and trajectory length."""

from __future__ import annotations

from collections.abc import Callable

from pyro_manifold.infer.mcmc.adaptation import InverseMassEstimator, MassAdaptation, StepSizeAdaptation
from pyro_manifold.infer.mcmc.leapfrog import Block, Blocks, ChainState
from pyro_manifold.infer.mcmc.metropolis import TransitionInfo
from pyro_manifold.infer.mcmc.trajectory import (
    INITIAL_LENGTH,
    MAXIMUM_STEPS,
    MAXIMUM_STEPS_BEFORE_MASSES,
    MAXIMUM_STEPS_OF_A_TRIAL,
    LengthChoice,
    TrajectoryLength,
)

Estimators = dict[Block, Callable[[], InverseMassEstimator]]

_ACCEPTANCE_OF_FIRST_STEP = 0.8  # the step size search looks for this, as Stan's does


class WarmUp:
    """Step size, masses and trajectory length; the first iterations adapt them, on all chains together.

    Masses are estimated anew at the end of each window, as in Pyro and Stan. The transitions of the last of these
    windows also serve to choose the length, if none was given.

    Args:
        step_size: ε to begin with.
        trajectory_length: mean length, None to choose it.
        trajectory_jitter: lengths vary within this share of their mean.
        num_steps: a fixed number of steps instead.
        adapt_step_size: whether ε adapts.
        adapt_mass_matrix: whether masses adapt.
        target_accept_prob: acceptance probability that ε aims at.
        step_size_bounds: bounds of ε; the length of a trajectory is another.
    """

    def __init__(
        self,
        step_size: float,
        trajectory_length: float | None,
        trajectory_jitter: float,
        num_steps: int | None,
        adapt_step_size: bool,
        adapt_mass_matrix: bool,
        target_accept_prob: float,
        step_size_bounds: tuple[float, float],
    ) -> None:
        self._chooses_length = trajectory_length is None and num_steps is None
        if num_steps is not None:
            trajectory_jitter = 0.0
            trajectory_length = step_size * num_steps if trajectory_length is None else trajectory_length
        self._given_length = INITIAL_LENGTH if trajectory_length is None else trajectory_length
        self._lengths = TrajectoryLength(self._given_length, trajectory_jitter, num_steps)
        self._step_size_bounds = step_size_bounds
        self._adapter = StepSizeAdaptation(
            step_size,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            target_accept_prob=target_accept_prob,
        )
        self._length_choice: LengthChoice | None = None
        self._intended_length = self._given_length

    def begin(
        self,
        warmup_steps: int,
        state: ChainState,
        estimators: Estimators,
        acceptance_of_one_step: Callable[[float], float],
    ) -> None:
        """Forget an earlier run and search a first step size.

        Args:
            warmup_steps: iterations that adapt.
            state: where the chains start.
            estimators: makes an empty estimator of the inverse mass of each block.
            acceptance_of_one_step: mean acceptance probability of a single step of size ε from the present states.
        """
        self._warmup_steps = warmup_steps
        self._acceptance_of_one_step = acceptance_of_one_step
        self._lengths.mean = self._given_length
        self._length_choice = LengthChoice(self._lengths, state) if self._chooses_length else None
        self._adapter.mass_matrix_adapter = MassAdaptation(estimators)
        self._adapter.configure(warmup_steps, mass_matrix_shape={}, find_reasonable_step_size_fn=self._find_step_size)
        if self._adapter.adapt_step_size:
            self._adapter.reset_step_size_adaptation(state.position)

    @property
    def masses(self) -> MassAdaptation:
        return self._adapter.mass_matrix_adapter

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self._lengths.mean

    @property
    def step_size(self) -> float:
        """Current ε; never longer than a trajectory, since on a flat target every ε would be accepted."""
        smallest, largest = self._step_size_bounds
        return max(smallest, min(self._adapter.step_size, largest, self.trajectory_length))

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory of mean length."""
        return self._lengths.steps_of(self.trajectory_length, self.step_size)

    def next_num_steps(self, iteration: int) -> int:
        """Leapfrog steps of the trajectory of this iteration, counted from 1."""
        longest = MAXIMUM_STEPS
        self._intended_length = self._lengths.draw(iteration)
        if self._listens(iteration):
            assert self._length_choice is not None
            self._intended_length, longest = self._length_choice.draw(iteration), MAXIMUM_STEPS_OF_A_TRIAL
        elif self._masses_pending and iteration <= self._warmup_steps:
            longest = MAXIMUM_STEPS_BEFORE_MASSES
        return self._lengths.steps_of(self._intended_length, self.step_size, longest)

    def update(
        self, iteration: int, num_steps: int, before: ChainState, after: ChainState, info: TransitionInfo
    ) -> None:
        """Learn from one transition of all chains."""
        if self._listens(iteration):
            assert self._length_choice is not None
            self._length_choice.update(self._intended_length, num_steps, before, after)
        probability = info.acceptance_probability.mean()
        # At its upper bound the step size must not be pushed on: the dual average would lag behind.
        if self._adapter.step_size >= self.trajectory_length:
            probability = probability.clamp(max=self._adapter.target_accept_prob)
        self._adapter.step(iteration, after.position, probability, after.gradient)

    @property
    def _masses_pending(self) -> bool:
        return self._adapter.adapt_mass_matrix and self.masses.windows_completed == 0

    def _listens(self, iteration: int) -> bool:
        """In the last window that estimates masses.

        Not earlier: chains that still travel arrive sooner by long trajectories than by those that suit where they
        are. Not later: the iterations that follow settle ε for the lengths that will be used.
        """
        schedule = self._adapter.adaptation_schedule
        return (
            self._length_choice is not None
            and len(schedule) > 2
            and schedule[-2].start <= iteration < schedule[-1].start
            and not self._masses_pending
        )

    def _find_step_size(self, _position: Blocks) -> float:
        """Double or halve ε until the mean acceptance probability of a single step crosses 0.8, as Stan does."""
        smallest, largest = self._step_size_bounds
        largest = min(largest, self.trajectory_length)
        step_size, growing = self.step_size, None
        while True:
            grow = self._acceptance_of_one_step(step_size) > _ACCEPTANCE_OF_FIRST_STEP
            if growing is None:
                growing = grow
            following = step_size * (2.0 if growing else 0.5)
            if grow != growing or not smallest <= following <= largest:
                return step_size
            step_size = following
