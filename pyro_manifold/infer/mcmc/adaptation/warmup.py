"""Adaptation of Hamiltonian Monte Carlo in warm-up: masses, trajectory lengths and step sizes of all chains jointly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.density import CENTREDNESS
from pyro_manifold.infer.mcmc.adaptation.adapter import Adaptation, Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.arrival import (
    left_behind,
    of_chains,
    representatives,
    warn_of_chains_left,
    warn_of_collapse,
)
from pyro_manifold.infer.mcmc.adaptation.centring import Centring, Recentred
from pyro_manifold.infer.mcmc.adaptation.chain_step_sizes import ChainStepSizes
from pyro_manifold.infer.mcmc.adaptation.lengths import (
    INITIAL_LENGTH,
    MAXIMUM_STEPS,
    LengthChoice,
    TrajectoryLength,
)
from pyro_manifold.infer.mcmc.adaptation.masses import Masses
from pyro_manifold.infer.mcmc.adaptation.step_size import DualAveragingStepSize
from pyro_manifold.infer.mcmc.adaptation.trajectory_lengths import TrajectoryLengths
from pyro_manifold.infer.mcmc.adaptation.windows import SHORT, windows
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, Metrics, State
from pyro_manifold.infer.mcmc.transitions import ChainState, Statistics, coordinates

_FAILED_ACCEPTANCE = 0.1  # acceptance probability below which a chain's share of ε is reduced
_PATIENCE = 10  # iterations; twice the number that a chain needs to return to the full ε after a reduction

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
        adapt_centring: whether the coordinates of location-scale sites are adapted, together with masses.
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
    adapt_centring: bool = True

    @property
    def chooses_length(self) -> bool:
        """True if warm-up chooses the trajectory length."""
        return self.trajectory_length is None and self.num_steps is None

    def windows(self, warmup_steps: int) -> list[range]:
        """Return the windows of warm-up; none if neither step size nor masses are adapted."""
        return windows(warmup_steps) if self.adapt_step_size or self.adapt_mass_matrix else []

    def centres(self, warmup_steps: int) -> bool:
        """Return whether the coordinates of location-scale sites are chosen in a warm-up of so many iterations."""
        return self.adapt_centring and self.adapt_step_size and self.adapt_mass_matrix and warmup_steps >= SHORT

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


class WarmUp(Adaptation[HamiltonianSettings]):
    """Masses, trajectory lengths and step sizes, adapted during warm-up on all chains jointly.

    Chains that have not reached the typical set neither reduce the step size of the others nor get stuck
    (`ChainStepSizes`); in the last window all chains use the same step size, that of sampling. Nothing is learned
    from chains that are left far above the others (`left_behind`).

    Masses are estimated at the end of each window, as in Pyro and Stan (`Masses`), and the step size is searched again
    for them. If no trajectory length was given, it is chosen from the transitions of all windows but the first two and
    the last (`TrajectoryLengths`).

    Args:
        plan: user settings.
        warmup_steps: iterations of warm-up.
        state: initial state of the chains.
        masses: adapter of masses, for the windows of the plan.
        acceptance_of_one_step: acceptance probability of one leapfrog step, for the search of the step size.
        random: random number generator for the search of the initial step size.
        functionals: functionals of a state by which the trajectory length is chosen.
        centring: adapter of coordinates; None to leave them as they are.

    Attributes:
        masses: adapter of masses.
        lengths: adapter of trajectory lengths.
        step_sizes: adapter of step sizes.
    """

    def __init__(
        self,
        plan: AdaptationSettings,
        warmup_steps: int,
        state: State,
        masses: Masses,
        acceptance_of_one_step: AcceptanceOfOneStep,
        random: torch.Generator,
        functionals: Callable[[ChainState], Tensor] = coordinates,
        centring: Centring | None = None,
    ) -> None:
        self.centring = centring
        self._plan, self._warmup_steps, self.masses = plan, warmup_steps, masses
        self._coordinates = sum(x[0].numel() for block, x in state.position.items() if block != (CENTREDNESS,))
        self._acceptance_of_one_step = acceptance_of_one_step
        schedule, lengths = plan.windows(warmup_steps), plan.lengths()
        adapts = plan.adapt_step_size
        self.step_sizes: ChainStepSizes[HamiltonianSettings] = ChainStepSizes(
            DualAveragingStepSize(plan.step_size, plan.target_accept_prob, plan.step_size_bounds, len(state.energy)),
            state.energy,
            partial(getattr, lengths, "mean"),
            _has_failed,
            schedule,
            adapting=range(warmup_steps if adapts else 0),
            backing_off=range(schedule[-1].start if adapts else 0),
            patience=_PATIENCE,
            acceptance_of_one_step=self._acceptance_of_those_that_arrived,
            search_again=plan.adapt_mass_matrix,
        )
        choice = LengthChoice(lengths, state, functionals)
        self.lengths = TrajectoryLengths(lengths, choice, self.step_sizes, masses, schedule, plan.chooses_length)
        adapters: dict[str, Adapter[HamiltonianSettings]] = {} if centring is None else {"centring": centring}
        adapters |= {"masses": masses, "lengths": self.lengths, "step_sizes": self.step_sizes}
        super().__init__(schedule, adapters)
        if adapts and (warmup_steps or not plan.found):
            self.step_sizes.search(state, random)
            if not warmup_steps:
                self.step_sizes.rule.settle()

    def initial_settings(self, iteration: int) -> HamiltonianSettings:
        return HamiltonianSettings(self._plan.step_size, 1, {}, self._plan.persistence)

    def settings(self, iteration: int) -> HamiltonianSettings:
        if iteration <= self._warmup_steps + 1:  # the first after warm-up may have momenta of other masses
            return super().settings(iteration)
        # What the adapters contribute then; asking each of them takes as long as a trajectory of a small model.
        step_size, lengths = self.step_size, self.lengths.distribution
        num_steps = lengths.steps_of(lengths.draw(iteration), step_size)
        return HamiltonianSettings(step_size, num_steps, self.masses.metrics, self._plan.persistence)

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self.lengths.distribution.mean

    @property
    def step_size(self) -> float:
        """Current ε, at most the trajectory length."""
        return self.step_sizes.value

    @property
    def num_steps(self) -> int:
        """Number of leapfrog steps of a trajectory of mean length."""
        return self.lengths.num_steps

    @property
    def example(self) -> HamiltonianSettings:
        """Settings of a typical iteration."""
        return HamiltonianSettings(self.step_size, self.num_steps, self.masses.metrics, self._plan.persistence)

    def learn_cost(self, fixed_cost: float) -> None:
        """Set the fixed cost of an iteration in leapfrog steps; a larger one favours long trajectories."""
        self.lengths.choice.fixed_cost = fixed_cost

    def learn(
        self, iteration: int, before: State, after: State, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Adapt to one trajectory of all chains."""
        super().learn(iteration, before, after, statistics, random)
        if iteration != self._warmup_steps:
            return
        if self._warmup_steps >= SHORT:  # else chains may still be on their way
            warn_of_chains_left(after.energy, self._coordinates)
        if self._plan.adapt_step_size:
            warn_of_collapse(self.step_size, self.num_steps, self.trajectory_length)

    def recentred(self, state: State, found: Recentred, random: torch.Generator) -> None:
        """Adapt to other coordinates, in which the chains are at a state."""
        self.masses.estimate_from(found.positions, found.gradients)
        self.lengths.choice.forget()
        self.step_sizes.search(state, random)

    def _learn(self, seen: WarmUpIteration) -> None:
        left = left_behind(seen.after.energy, self._coordinates)
        if bool(left.any()):
            before, after = (of_chains(state, representatives(left)) for state in (seen.before, seen.after))
            seen = seen._replace(before=before, after=after, arrived=~left)
        super()._learn(seen)

    def _acceptance_of_those_that_arrived(self, state: State, step_size: float, random: torch.Generator) -> float:
        state = of_chains(state, representatives(left_behind(state.energy, self._coordinates)))
        return self._acceptance_of_one_step(state, step_size, self.masses.metrics, random)


def _has_failed(statistics: Statistics) -> Tensor:
    return statistics["acceptance_rate"] < _FAILED_ACCEPTANCE
