"""Transition in a position-dependent metric: refresh velocities, integrate a trajectory, accept or reject its end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.riemannian.lagrangian import (
    FlatPotential,
    Point,
    explicit_kick,
    kinetic_energy,
    lagrangian_kick,
    leapfrog,
    point_at,
    refresh,
    velocity_from,
)
from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    Noise,
    Statistics,
    choose,
    metropolis,
    normal_like,
    uniform_like,
    with_step_sizes,
)

RUNAWAY_THRESHOLD = 10.0
"""Energy error, in excess of the energy dissipated by friction, at which the unadjusted dynamics rejects a trajectory.

Without this limit, the energy of a chain would grow without bound where steps are too long for the metric. Each
refreshment removes the fraction sin²θ of the kinetic energy, so that errors of that size do not accumulate. Chains that
descend fast towards the typical set use shorter steps during warm-up: see `WarmUp`.
"""


class LagrangianState(NamedTuple):
    """Position and velocity of every chain; all sites are one flat block.

    Attributes:
        block: name of the block.
        point: position and the quantities that depend on it.
        velocity: v, ``(chains, d)``.
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

    @property
    def metric(self) -> Tensor:
        return self.point.metric


class LagrangianSettings(NamedTuple):
    """Settings of a trajectory in a position-dependent metric.

    Attributes:
        step_size: ε, a number or ``(chains,)``.
        num_steps: number of leapfrog steps.
        adjusted: whether its end is accepted or rejected, with the Jacobian of the steps.
    """

    step_size: Tensor | float
    num_steps: int
    adjusted: bool


class PotentialAndMetric(NamedTuple):
    """Functions evaluated in a step.

    Attributes:
        potential: E and its gradient.
        field: the metric.
    """

    potential: FlatPotential
    field: MetricField


class Moving(NamedTuple):
    """State of chains within a trajectory.

    Attributes:
        point: current positions.
        velocity: v, ``(chains, d)``.
        log_volume: log Jacobian determinant of the steps so far as a map of ``(q, v)``, ``(chains,)``.
    """

    point: Point
    velocity: Tensor
    log_volume: Tensor


class LagrangianTrajectory:
    """Trajectory as pure functions: partial refreshment, integration, and acceptance or reversal of the velocity.

    Args:
        block: name of the flat block.
        persistence: cos θ, the fraction of the velocity that a refreshment keeps.
        with_volume: whether the potential of the dynamics includes ½ log|G|.
        reversible: whether to use the Lagrangian kick, whose Jacobian is known, instead of the cheaper explicit one.
    """

    def __init__(self, block: Block, *, persistence: float, with_volume: bool, reversible: bool) -> None:
        self._block, self._persistence, self._with_volume = block, persistence, with_volume
        self._kick = lagrangian_kick if reversible else explicit_kick

    def point_at(self, position: Tensor, model: PotentialAndMetric) -> Point:
        """Compute the `Point` of a position."""
        return point_at(position, potential=model.potential, field=model.field, with_volume=self._with_volume)

    def state_at(self, position: Blocks, model: PotentialAndMetric, random: torch.Generator) -> LagrangianState:
        """Return a state at a position, with a random velocity."""
        point = self.point_at(position[self._block], model)
        return LagrangianState(self._block, point, velocity_from(normal_like(point.position, random), point))

    def energy(self, point: Point, velocity: Tensor, adjusted: bool) -> Tensor:
        r"""Compute minus the log of the invariant density, ``(chains,)``.

        In coordinates of position and velocity it is φ − log|G| + ½ vᵀGv, used with the Jacobian of the steps. Without
        the Jacobian, which accounts for the volume |G|, the steps conserve φ + ½ vᵀGv.
        """
        multiple = float(self._with_volume) - (2.0 if adjusted else 0.0)
        return point.energy + multiple * point.half_log_determinant + kinetic_energy(point, velocity)

    # ---- transition ---------------------------------------------------------------------------------------------

    def prepared(self, settings: LagrangianSettings, state: LagrangianState) -> LagrangianSettings:
        """Return the settings with the step size as a tensor ``(chains,)``."""
        return with_step_sizes(settings, state.energy)

    def noise(self, state: LagrangianState, random: torch.Generator) -> Noise:
        """Draw the noise of the velocities and of the Metropolis decision."""
        return Noise(normal_like(state.velocity, random), uniform_like(state.energy, random))

    def begin(
        self, state: LagrangianState, settings: LagrangianSettings, noise: Noise, model: PotentialAndMetric
    ) -> tuple[Moving, Moving]:
        """Partially refresh velocities."""
        velocity = refresh(state.point, state.velocity, self._persistence, noise.normal)
        start = Moving(state.point, velocity, torch.zeros_like(state.energy))
        return start, start

    def step(self, moving: Moving, settings: LagrangianSettings, noise: Noise, model: PotentialAndMetric) -> Moving:
        """Take one leapfrog step."""
        point, velocity, change = leapfrog(
            moving.point,
            moving.velocity,
            settings.step_size,
            kick=self._kick,
            potential=model.potential,
            field=model.field,
            with_volume=self._with_volume,
        )
        return Moving(point, velocity, moving.log_volume + change)

    def finish(
        self, end: Moving, start: Moving, settings: LagrangianSettings, noise: Noise
    ) -> tuple[LagrangianState, Statistics]:
        """Return the end of each accepted trajectory, else its start with reversed velocity, and the statistics."""
        adjusted = settings.adjusted
        before, after = (self.energy(place.point, place.velocity, adjusted) for place in (start, end))
        decision = metropolis(before, after - end.log_volume if adjusted else after, noise.uniform)
        if not adjusted:
            friction = (1 - self._persistence**2) * kinetic_energy(start.point, start.velocity)
            decision = decision._replace(accepted=decision.energy_error <= RUNAWAY_THRESHOLD + friction)
        there, back = (end.point, end.velocity), (start.point, -start.velocity)
        point, velocity = choose(decision.accepted, there, back)
        statistics = {
            **decision.statistics,
            "energy": torch.where(decision.accepted, after, before),
            "lp": -point.energy,
            "jittered": point.jitter > 0,
        }
        if not adjusted:
            statistics["diverging"] = ~decision.accepted
        return LagrangianState(self._block, point, velocity), statistics
