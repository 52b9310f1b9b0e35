"""The transition in a changing metric: refresh velocities, follow a trajectory, and what becomes of its end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.metropolis import metropolis
from pyro_manifold.infer.mcmc.riemannian.lagrangian import Point, draw_velocity, kinetic_energy, refresh
from pyro_manifold.infer.mcmc.riemannian.step import LagrangianStep
from pyro_manifold.infer.mcmc.states import Block, Blocks, Statistics, choose

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
    """

    def __init__(self, step: LagrangianStep, block: Block, *, num_steps: int, persistence: float) -> None:
        self.step = step
        self._block = block
        self._num_steps = num_steps
        self._persistence = persistence

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
        start = state.point
        velocity = refresh(start, state.velocity, self._persistence, random)
        end, moved, log_volume = start, velocity, torch.zeros_like(start.energy)
        for _ in range(self._num_steps):
            end, moved, change = self.step(end, moved, settings.step_size)
            log_volume = log_volume + change
        before, after = (
            self.energy(point, speed, settings.adjusted) for point, speed in ((start, velocity), (end, moved))
        )
        decision = metropolis(before, after - log_volume if settings.adjusted else after, random)
        if not settings.adjusted:
            friction = (1 - self._persistence**2) * kinetic_energy(start, velocity)
            decision = decision._replace(accepted=decision.energy_error <= RUNAWAY_THRESHOLD + friction)
        # A rejected chain goes on with its velocity reversed, as partial refreshment asks for.
        point, velocity = choose(decision.accepted, (end, moved), (start, -velocity))
        statistics = {
            **decision.statistics,
            "energy": torch.where(decision.accepted, after, before),
            "lp": -point.energy,
            "step_size": settings.step_size,
            "n_steps": torch.full_like(before, self._num_steps, dtype=torch.long),
            "jittered": point.jitter > 0,
        }
        if not settings.adjusted:
            statistics["diverging"] = ~decision.accepted
        return state._replace(point=point, velocity=velocity), statistics
