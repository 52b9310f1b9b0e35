"""Dynamics in a changing metric as a transition of all chains: refresh, steps, and what becomes of their end."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.compiled import (
    WITHOUT_COMPILING,
    WITHOUT_TRACING,
    FlatFunction,
    checked,
    compiled,
)
from pyro_manifold.infer.mcmc.folding import folded_graph
from pyro_manifold.infer.mcmc.lagrangian import (
    FlatPotential,
    Point,
    draw_velocity,
    explicit_kick,
    kinetic_energy,
    lagrangian_kick,
    leapfrog,
    point_at,
    refresh,
)
from pyro_manifold.infer.mcmc.leapfrog import Block, Blocks
from pyro_manifold.infer.mcmc.metric_field import Field, MetricField
from pyro_manifold.infer.mcmc.metropolis import DIVERGENCE_THRESHOLD, TransitionInfo, judge, select
from pyro_manifold.tracing import reason

RUNAWAY_THRESHOLD = 10.0
"""Energy error of a trajectory that the uncorrected dynamics does not follow, on top of what friction takes away.

Nothing else would stop a chain where steps are too long for the metric: its energy would grow without bound. A share
sin²θ of the kinetic energy goes at each refreshment, so errors of that size cannot add up, and a chain that falls fast
is let through. One that cannot begin to fall takes shorter steps, during warm-up: `LagrangianState.with_caution`.
"""


class LagrangianState(NamedTuple):
    """Where every chain is and how it moves; all sites are one flat block.

    Attributes:
        block: its name.
        point: the position and what depends on it.
        velocity: ``(chains, d)``.
        share: of the step size that each chain takes, ``(chains,)``; see `with_caution`.
        arriving: whether trajectories are followed without the Metropolis test.
    """

    block: Block
    point: Point
    velocity: Tensor
    share: Tensor
    arriving: bool = False

    @property
    def position(self) -> Blocks:
        return {self.block: self.point.position}

    @property
    def energy(self) -> Tensor:
        return self.point.energy

    @property
    def gradient(self) -> Blocks:
        return {self.block: self.point.gradient}

    def with_caution(self, info: TransitionInfo, *, arriving: bool) -> LagrangianState:
        """After a step that went wrong, a chain takes half of it; after each that did not, a fifth more of its own.

        For warm-up: where chains start, the metric can turn within a fraction of the step that suits the posterior.
        And while they are ``arriving`` there is no Metropolis test, for they must lose energy faster than it lets them.
        """
        wrong = (info.energy_error > RUNAWAY_THRESHOLD) & ~info.accepted
        share = torch.where(wrong, self.share / 2, 1.2 * self.share).clamp(max=1)
        return self._replace(share=share, arriving=arriving)

    def without_caution(self) -> LagrangianState:
        """All chains take the whole step, and the Metropolis test if there is one."""
        return self._replace(share=torch.ones_like(self.share), arriving=False)


class LagrangianSystem:
    """Potential and metric together, as a system that a kernel can run.

    Args:
        potential: energies and gradients of flat positions.
        field: the metric.
        block: the name of the flat block.
        persistence: share of the velocity that a refreshment keeps.
        with_volume: whether φ includes ½ log|G|.
        exact: whether ends of trajectories are accepted or rejected, with the Jacobian of the steps.
    """

    def __init__(
        self,
        potential: FlatPotential,
        field: MetricField,
        block: Block,
        *,
        persistence: float,
        with_volume: bool,
        exact: bool,
    ) -> None:
        self._block = block
        self._persistence = persistence
        self._with_volume = with_volume
        self._exact = exact
        self._point_at = partial(point_at, potential=potential, field=field, with_volume=with_volume)
        self._field = field
        self._leapfrog = partial(
            leapfrog,
            kick=lagrangian_kick if exact else explicit_kick,
            potential=potential,
            with_volume=with_volume,
        )
        # (step size, velocity, *point) to (log volume, velocity, *point).
        self._step: FlatFunction = self._eager_step

    def state_at(self, position: Blocks) -> LagrangianState:
        """A state with a velocity from its law."""
        point = self._point_at(position[self._block])
        return LagrangianState(self._block, point, draw_velocity(point), torch.ones_like(point.energy))

    def energy(self, point: Point, velocity: Tensor, exact: bool) -> Tensor:
        r"""Minus the log of the law that is kept, ``(chains,)``.

        In position and velocity, φ − log|G| + ½ vᵀGv. Without the Jacobian of the steps, which makes up for the
        volume |G| that they move in, φ + ½ vᵀGv is what they keep.
        """
        multiple = float(self._with_volume) - (2.0 if exact else 0.0)
        return point.energy + multiple * point.half_log_determinant + kinetic_energy(point, velocity)

    def transition(
        self, state: LagrangianState, step_size: Tensor | float, num_steps: int, _metrics: object = None
    ) -> tuple[LagrangianState, TransitionInfo]:
        """Refresh velocities in part, follow a trajectory, keep its end or turn back where it began.

        A rejected chain goes on with its velocity reversed, as partial refreshment asks for.
        """
        start = state.point
        velocity = refresh(start, state.velocity, self._persistence)
        step_size = step_size * state.share
        end, moved, log_volume = start, velocity, torch.zeros_like(start.energy)
        for _ in range(num_steps):
            change, moved, *values = self._step(step_size, moved, *end)
            end, log_volume = Point(*values), log_volume + change
        exact = self._exact and not state.arriving
        before, after = self.energy(start, velocity, exact), self.energy(end, moved, exact)
        energy_error, probability, accepted = judge(before, after - log_volume if exact else after)
        if exact:
            diverging = energy_error > DIVERGENCE_THRESHOLD
        else:
            friction = (1 - self._persistence**2) * kinetic_energy(start, velocity)
            accepted = energy_error <= RUNAWAY_THRESHOLD + friction
            diverging = ~accepted
        point = Point(*(select(accepted, new, old) for new, old in zip(end, start, strict=True)))
        energy = select(accepted, after, before)
        info = TransitionInfo(probability, accepted, diverging, energy_error, energy, -point.energy)
        return state._replace(point=point, velocity=select(accepted, moved, -velocity)), info

    def trace(self, position: Tensor, *, compile: bool, options: dict[str, Any] | None, warn: bool) -> None:
        """Replace the step by its graph, and that by a compiled one; keeps what it has, with a warning, if that fails.

        The transforms of torch.func cost much more than the arithmetic of a step if they are done at each call.
        """
        point = self._point_at(position)
        # Of the size of a draw, but not drawn: looking at the model must not change the draws of a seeded run.
        velocity = point.metric.diagonal(dim1=-2, dim2=-1).rsqrt()
        time = torch.full_like(point.energy, 1e-2)
        example = [value.clone() for value in (time, velocity, *point)]
        elsewhere = [3 * time, -2 * velocity, *point]
        consequence = WITHOUT_TRACING
        try:
            graph = checked(lambda: self._graph(position, velocity, *example), self._eager_step, *elsewhere)
            self._step = graph
            if compile:
                consequence = WITHOUT_COMPILING
                self._step = checked(lambda: compiled(graph, options), graph, *elsewhere)
        except Exception as error:  # a tracer or compiler can fail in any way; sampling goes on without it
            if warn:
                warnings.warn(f"{consequence}: {reason(error)}", stacklevel=2)

    def _graph(self, position: Tensor, velocity: Tensor, *example: Tensor) -> FlatFunction:
        field = _TracedField(self._field, position, velocity, self._exact)
        return folded_graph(lambda *values: self._eager_step(*values, field=field), *example)

    def forget_compiled(self) -> None:
        """Step without a graph from now on."""
        self._step = self._eager_step

    def _eager_step(
        self, step_size: Tensor, velocity: Tensor, *point: Tensor, field: MetricField | None = None
    ) -> tuple[Tensor, ...]:
        moved, velocity, log_volume = self._leapfrog(Point(*point), velocity, step_size, field=field or self._field)
        return (log_volume, velocity, *moved)


class _TracedField(MetricField):
    """A metric field whose connection is a graph: a step uses it four times, and tracing it is what takes time."""

    def __init__(self, field: MetricField, position: Tensor, velocity: Tensor, as_matrix: bool) -> None:
        self._field = field
        connection = field.connection_matrix if as_matrix else field.connection
        self._connection = folded_graph(connection, position.clone(), velocity.clone())

    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        return self._field.at(position)

    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        return self._connection(position, velocity)

    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        return self._connection(position, velocity)
