"""The transition of Hamiltonian Monte Carlo: refresh momenta, follow a trajectory, accept or reject its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.infer.mcmc.hmc.leapfrog import Metrics, State, refresh, reversed_in_time, total_energy
from pyro_manifold.infer.mcmc.hmc.native import Inputs, flat_state, native_iteration, state_of
from pyro_manifold.infer.mcmc.hmc.step import Step
from pyro_manifold.infer.mcmc.metropolis import metropolis
from pyro_manifold.infer.mcmc.native import NativeIteration, Told, drawn
from pyro_manifold.infer.mcmc.states import GivenNumbers, Potential, Statistics, choose, normal_like, uniform_like

_TRUTHS = frozenset(("accepted", "diverging"))
_TOLD = Told(("acceptance_rate", "accepted", "diverging", "energy_error", "energy", "lp"), _TRUTHS)


class HamiltonianSettings(NamedTuple):
    """What a trajectory needs to know beside where it starts.

    Attributes:
        step_size: ε, a number or ``(chains,)``.
        num_steps: leapfrog steps.
        metrics: masses of all blocks.
        persistence: share of the momentum that is kept; 0 draws it anew.
    """

    step_size: Tensor | float
    num_steps: int
    metrics: Metrics
    persistence: float = 0.0


class Trajectory:
    """Refresh, integrate, decide; for all chains together.

    A rejected chain goes on from where it was with its momentum reversed: without that, momenta that persist would not
    keep their distribution (Horowitz 1991).

    Args:
        step: the leapfrog step.

    Attributes:
        native: an iteration as a function of tensors, one call for each step or one for all.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._mechanics = step.mechanics
        self._blocks = list(step.mechanics)
        self._persistence = 0.0
        self.native = NativeIteration(self._flat, 3 * len(self._blocks) + 1)

    def __call__(
        self, state: State, settings: HamiltonianSettings, random: torch.Generator
    ) -> tuple[State, Statistics]:
        if self.native.is_native and settings.persistence == self._persistence:
            chosen, statistics = self._unflattened(self.native.graph(*self._inputs(state, settings, random)))
        else:
            start, before = self._begin(state, settings, random)
            end = self.integrate(start, settings.step_size, settings.num_steps, settings.metrics)
            chosen, statistics = self._finish(start, before, end, settings, random)
        return chosen, statistics | _taken(chosen.energy, settings.step_size, settings.num_steps)

    def at_once(self, settings: HamiltonianSettings) -> int:
        """Of how many iterations the cost of a call is small beside theirs; 1 without native code."""
        return self.native.at_once(settings.num_steps) if settings.persistence == self._persistence else 1

    def several(
        self, state: State, settings: Sequence[HamiltonianSettings], random: torch.Generator
    ) -> tuple[State, Statistics, list[Tensor]]:
        """Iterations in one call of native code, with masses, ε and persistence of the first settings; see `Together`.

        Returns:
            States and statistics, ``(iterations, chains, ...)``, and the generator's state after each iteration.
        """
        first, steps = settings[0], [chosen.num_steps for chosen in settings]
        (*noise, uniform), after = drawn(lambda: self._numbers(state, random), len(settings), random)
        inputs = self._joined(state, first, noise, uniform).flat()
        states, statistics = self._unflattened(self.native.several(steps, inputs))
        taken = _taken(states.energy, first.step_size, torch.tensor(steps).unsqueeze(1))
        return states, statistics | taken, after

    def _begin(self, state: State, settings: HamiltonianSettings, random: torch.Generator) -> tuple[State, Tensor]:
        """Momenta drawn anew, and the total energy with them."""
        metrics = settings.metrics
        start = refresh(
            state, mechanics=self._mechanics, metrics=metrics, persistence=settings.persistence, random=random
        )
        return start, total_energy(start, mechanics=self._mechanics, metrics=metrics)

    def integrate(self, state: State, step_size: Tensor | float, num_steps: int, metrics: Metrics) -> State:
        """``num_steps`` leapfrog steps."""
        step_size = torch.as_tensor(step_size, dtype=state.energy.dtype, device=state.energy.device)
        for _ in range(num_steps):
            state = self.step(state, step_size, metrics)
        return state

    def _finish(
        self, start: State, before: Tensor, end: State, settings: HamiltonianSettings, random: torch.Generator
    ) -> tuple[State, Statistics]:
        """The end of each chain that accepts it, else the start; and what happened."""
        after = total_energy(end, mechanics=self._mechanics, metrics=settings.metrics)
        decision = metropolis(before, after, random)
        restored = {block: move.restore(end.position[block]) for block, move in self._mechanics.items()}
        back = reversed_in_time(start) if settings.persistence else start  # momenta that are drawn anew need no turning
        chosen: State = choose(decision.accepted, end._replace(position=restored), back)
        energy = torch.where(decision.accepted, after, before)
        return chosen, {**decision.statistics, "energy": energy, "lp": -chosen.energy}

    # ---- as a function of tensors -------------------------------------------------------------------------------

    def compile(
        self,
        state: State,
        settings: HamiltonianSettings,
        potential: Potential,
        density: Trusted,
        *,
        warn: bool = True,
    ) -> None:
        """Follow all steps of all chains in one call of native code from now on, if that can be compiled.

        Args:
            state: where the chains are, to trace and to compare at.
            settings: to trace with; step sizes, numbers of steps and masses may change later.
            potential: energy and gradient of one chain, ``(1, ...)``, traced.
            density: the function that the step's own potential calls.
            warn: whether to say so if it fails.
        """
        self._persistence = settings.persistence
        # A generator of its own: looking at the model must not change a seeded run.
        random = torch.Generator().manual_seed(0)
        points = [self._inputs(state, settings._replace(num_steps=steps), random) for steps in (1, 3)]

        def finish(given: Inputs, start: State, before: Tensor, end: State) -> list[Tensor]:
            return self._flat_result(*self._finish(start, before, end, *self._given(given, end=True)[1:]))

        def build() -> NativeLoop:
            example, chains = Inputs.of(points[0][:-1]), len(state.energy)
            begin = lambda given: self._begin(*self._given(given))  # noqa: E731
            return native_iteration(begin, finish, potential, self._mechanics, example, chains)

        if density.is_graph:  # if not, a warning has told
            self.native.compile(build, points, warn=warn)

    def _inputs(self, state: State, settings: HamiltonianSettings, random: torch.Generator) -> list[Tensor]:
        """All that an iteration depends on; random numbers are drawn in the order in which the steps draw them."""
        *noise, uniform = self._numbers(state, random)
        return [*self._joined(state, settings, noise, uniform).flat(), torch.tensor(settings.num_steps)]

    def _numbers(self, state: State, random: torch.Generator) -> list[Tensor]:
        """For the momenta and the decision of one iteration."""
        noise = [normal_like(state.position[block], random) for block in self._blocks]
        return [*noise, uniform_like(state.energy, random)]

    def _joined(self, state: State, settings: HamiltonianSettings, noise: list[Tensor], uniform: Tensor) -> Inputs:
        metrics = [settings.metrics[block] for block in self._blocks]
        return Inputs(
            torch.as_tensor(settings.step_size, dtype=state.energy.dtype).expand(state.energy.shape),
            uniform,
            [metric.inverse_mass for metric in metrics],
            [metric.mass_factor for metric in metrics],
            noise,
            flat_state(state, self._blocks),
        )

    def _given(self, inputs: Inputs, end: bool = False) -> tuple[State, HamiltonianSettings, GivenNumbers]:
        metrics = inputs.metrics(self._blocks)
        numbers = [inputs.uniform] if end else inputs.noise
        settings = HamiltonianSettings(inputs.step_size, 1, metrics, self._persistence)
        return state_of(inputs.state, self._blocks), settings, GivenNumbers.of(*numbers)

    def _flat(self, *values: Tensor) -> tuple[Tensor, ...]:
        inputs, steps = Inputs.of(values[:-1]), int(values[-1])
        state, settings, random = self._given(inputs)
        start, before = self._begin(state, settings, random)
        end = self.integrate(start, settings.step_size, steps, settings.metrics)
        return tuple(self._flat_result(*self._finish(start, before, end, *self._given(inputs, end=True)[1:])))

    def _flat_result(self, state: State, statistics: Statistics) -> list[Tensor]:
        return [*flat_state(state, self._blocks), *_TOLD.flat(statistics, state.energy)]

    def _unflattened(self, values: Sequence[Tensor]) -> tuple[State, Statistics]:
        count = 3 * len(self._blocks) + 1
        return state_of(values[:count], self._blocks), _TOLD.named(values[count:])


def _taken(energy: Tensor, step_size: Tensor | float, num_steps: Tensor | int) -> Statistics:
    """Step sizes and numbers of steps, in the shape of energies."""
    return {
        "step_size": torch.as_tensor(step_size).to(energy).expand_as(energy),
        "n_steps": torch.as_tensor(num_steps).expand_as(energy),
    }
