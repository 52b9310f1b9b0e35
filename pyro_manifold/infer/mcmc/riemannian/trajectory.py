"""The transition in a changing metric: refresh velocities, follow a trajectory, and what becomes of its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.infer.mcmc.metropolis import metropolis
from pyro_manifold.infer.mcmc.native import NativeIteration, Told, drawn, native_loop
from pyro_manifold.infer.mcmc.riemannian.lagrangian import FlatPotential, Point, draw_velocity, kinetic_energy, refresh
from pyro_manifold.infer.mcmc.riemannian.step import LagrangianStep
from pyro_manifold.infer.mcmc.states import (
    Block,
    Blocks,
    GivenNumbers,
    Statistics,
    choose,
    normal_like,
    uniform_like,
)

_TRUTHS = frozenset(("accepted", "diverging", "jittered"))
_TOLD = Told(("acceptance_rate", "accepted", "diverging", "energy_error", "energy", "lp", "jittered"), _TRUTHS)
_POINT = len(Point._fields)

RUNAWAY_THRESHOLD = 10.0
"""Energy error of a trajectory that the unadjusted dynamics does not follow, on top of what friction takes away.

Nothing else would stop a chain where steps are too long for the metric: its energy would grow without bound. A share
sin²θ of the kinetic energy goes at each refreshment, so errors of that size cannot add up. A chain that falls fast
towards the mass takes shorter steps, during warm-up: see `CautiousSteps`.
"""


class LagrangianState(NamedTuple):
    """Where every chain is and how it moves; all sites are one flat block.

    Attributes:
        block: its name.
        point: the position and what depends on it.
        velocity: ``(chains, d)``.
    """

    block: Block
    point: Point
    velocity: Tensor

    @property
    def position(self) -> Blocks:
        return {self.block: self.point.position}

    @property
    def energy(self) -> Tensor:
        return self.point.energy

    @property
    def gradient(self) -> Blocks:
        return {self.block: self.point.gradient}


class LagrangianSettings(NamedTuple):
    """What a trajectory needs to know beside where it starts.

    Attributes:
        step_size: ε of each chain, ``(chains,)``.
        adjusted: whether its end is accepted or rejected, with the Jacobian of the steps.
    """

    step_size: Tensor
    adjusted: bool


class LagrangianTrajectory:
    """Refresh velocities in part, follow a trajectory, keep its end or turn back where it began.

    Args:
        step: the step.
        block: the name of the flat block.
        num_steps: leapfrog steps of a trajectory.
        persistence: share of the velocity that a refreshment keeps.
        adjusted: whether draws are accepted or rejected; warm-up may do otherwise for a while.

    Attributes:
        native: an iteration as a function of tensors, one call for each step or one for all.
    """

    def __init__(
        self, step: LagrangianStep, block: Block, *, num_steps: int, persistence: float, adjusted: bool
    ) -> None:
        self.step = step
        self._block = block
        self._num_steps = num_steps
        self._persistence = persistence
        self._adjusted = adjusted
        self.native = NativeIteration(self._flat, 1 + _POINT)

    def state_at(self, position: Blocks, random: torch.Generator) -> LagrangianState:
        """A state with a velocity from its distribution."""
        point = self.step.point_at(position[self._block])
        return LagrangianState(self._block, point, draw_velocity(point, random))

    def moved(self, state: LagrangianState, position: Blocks) -> LagrangianState:
        """The same velocities elsewhere."""
        return state._replace(point=self.step.point_at(position[self._block]))

    def energy(self, point: Point, velocity: Tensor, adjusted: bool) -> Tensor:
        r"""Minus the log of the density that is kept, ``(chains,)``.

        In position and velocity, φ − log|G| + ½ vᵀGv. Without the Jacobian of the steps, which makes up for the
        volume |G| that they move in, φ + ½ vᵀGv is what they keep.
        """
        multiple = float(self.step.with_volume) - (2.0 if adjusted else 0.0)
        return point.energy + multiple * point.half_log_determinant + kinetic_energy(point, velocity)

    def __call__(
        self, state: LagrangianState, settings: LagrangianSettings, random: torch.Generator
    ) -> tuple[LagrangianState, Statistics]:
        if self.native.is_native and settings.adjusted == self._adjusted:
            values = self.native.graph(*self._inputs(state, settings.step_size, self._numbers(state, random)))
            following, statistics = self._unflattened(values)
        else:
            following, statistics = self._followed(state, settings, random, random)
        return following, statistics | self._taken(following, settings.step_size)

    def _followed(
        self, state: LagrangianState, settings: LagrangianSettings, random: torch.Generator, coin: torch.Generator
    ) -> tuple[LagrangianState, Statistics]:
        """One iteration, step by step."""
        start, velocity = state.point, refresh(state.point, state.velocity, self._persistence, random)
        end, moved, log_volume = start, velocity, torch.zeros_like(start.energy)
        for _ in range(self._num_steps):
            end, moved, change = self.step(end, moved, settings.step_size)
            log_volume = log_volume + change
        return self._decided((start, velocity), (end, moved), log_volume, settings.adjusted, coin)

    def _decided(
        self,
        start: tuple[Point, Tensor],
        end: tuple[Point, Tensor],
        log_volume: Tensor,
        adjusted: bool,
        random: torch.Generator,
    ) -> tuple[LagrangianState, Statistics]:
        """The end of each chain that is let go there, else its start with the velocity reversed; and what happened."""
        before, after = (self.energy(*place, adjusted) for place in (start, end))
        decision = metropolis(before, after - log_volume if adjusted else after, random)
        if not adjusted:
            friction = (1 - self._persistence**2) * kinetic_energy(*start)
            decision = decision._replace(accepted=decision.energy_error <= RUNAWAY_THRESHOLD + friction)
        point, velocity = choose(decision.accepted, end, (start[0], -start[1]))
        statistics = {
            **decision.statistics,
            "energy": torch.where(decision.accepted, after, before),
            "lp": -point.energy,
            "jittered": point.jitter > 0,
        }
        if not adjusted:
            statistics["diverging"] = ~decision.accepted
        return LagrangianState(self._block, point, velocity), statistics

    def _taken(self, state: LagrangianState, step_size: Tensor) -> Statistics:
        steps = torch.full_like(state.energy, self._num_steps, dtype=torch.long)
        return {"step_size": step_size.expand_as(state.energy), "n_steps": steps}

    # ---- native code --------------------------------------------------------------------------------------------

    def at_once(self, settings: LagrangianSettings) -> int:
        """Of how many iterations the cost of a call is small beside theirs; 1 without native code."""
        return self.native.at_once(self._num_steps) if settings.adjusted == self._adjusted else 1

    def several(
        self, state: LagrangianState, settings: Sequence[LagrangianSettings], random: torch.Generator
    ) -> tuple[LagrangianState, Statistics, list[Tensor]]:
        """Iterations in one call of native code, all with the first settings; see `Together`."""
        numbers, after = drawn(lambda: self._numbers(state, random), len(settings), random)
        step_size = settings[0].step_size
        inputs = self._inputs(state, step_size, numbers)[:-1]
        states, statistics = self._unflattened(self.native.several([self._num_steps] * len(settings), inputs))
        return states, statistics | self._taken(states, step_size), after

    def compile(self, state: LagrangianState, step_size: Tensor, one: FlatPotential, *, warn: bool = True) -> None:
        """Follow all steps of all chains in one call of native code from now on, if that can be compiled.

        Args:
            state: where the chains are, to trace and to compare at.
            step_size: ε of each chain.
            one: energy and gradient of one chain, ``(1, d)``, traced.
            warn: whether to say so if it fails.
        """
        random = torch.Generator().manual_seed(0)  # of its own: a seeded run stays as it is
        points = [self._inputs(state, size, self._numbers(state, random)) for size in (step_size, step_size / 2)]
        example = points[0][:-1]

        def build() -> NativeLoop:
            step = self.step.of_one_chain(example[3][:1], Point(*[value[:1] for value in example[4:]]), one)

            def begin(size: Tensor, uniform: Tensor, noise: Tensor, velocity: Tensor, *point: Tensor) -> list[Tensor]:
                velocity = refresh(Point(*point), velocity, self._persistence, GivenNumbers.of(noise))
                return [velocity, *point, torch.zeros_like(size), velocity.clone(), *[x.clone() for x in point]]

            def follow(size: Tensor, *values: Tensor) -> list[Tensor]:
                *state, log_volume = values[3 + _POINT :]
                change, *after = step(size, *state)
                return [*after, log_volume + change]

            def end(size: Tensor, uniform: Tensor, *values: Tensor) -> list[Tensor]:
                before, after = values[2 + _POINT : 3 + 2 * _POINT], values[3 + 2 * _POINT :]
                places = [(Point(*place[1 : 1 + _POINT]), place[0]) for place in (before, after)]
                decided = self._decided(places[0], places[1], after[-1], self._adjusted, GivenNumbers.of(uniform))
                return self._flat_result(*decided)

            return native_loop(begin, follow, end, 2 + _POINT, example, len(state.energy))

        self.native.compile(build, points, warn=warn)

    def _numbers(self, state: LagrangianState, random: torch.Generator) -> list[Tensor]:
        """For the velocities and the decision of one iteration."""
        return [normal_like(state.velocity, random), uniform_like(state.energy, random)]

    def _inputs(self, state: LagrangianState, step_size: Tensor, numbers: Sequence[Tensor]) -> list[Tensor]:
        noise, uniform = numbers
        return [step_size, uniform, noise, state.velocity, *state.point, torch.tensor(self._num_steps)]

    def _flat(self, *values: Tensor) -> tuple[Tensor, ...]:
        step_size, uniform, noise, velocity, *point, _ = values
        state = LagrangianState(self._block, Point(*point), velocity)
        settings = LagrangianSettings(step_size, self._adjusted)
        numbers = GivenNumbers.of(noise), GivenNumbers.of(uniform)
        return tuple(self._flat_result(*self._followed(state, settings, *numbers)))

    def _flat_result(self, state: LagrangianState, statistics: Statistics) -> list[Tensor]:
        return [state.velocity, *state.point, *_TOLD.flat(statistics, state.energy)]

    def _unflattened(self, values: Sequence[Tensor]) -> tuple[LagrangianState, Statistics]:
        velocity, *rest = values
        return LagrangianState(self._block, Point(*rest[:_POINT]), velocity), _TOLD.named(rest[_POINT:])
