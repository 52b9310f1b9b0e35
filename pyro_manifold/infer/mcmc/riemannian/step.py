"""The leapfrog step in a changing metric bound to one model, as it is or as one graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.graphs.agreement import FlatFunction
from pyro_manifold.graphs.folding import folded_graph
from pyro_manifold.graphs.trusted import Trusted, compiled
from pyro_manifold.infer.mcmc.riemannian.lagrangian import (
    FlatPotential,
    Point,
    explicit_kick,
    lagrangian_kick,
    leapfrog,
    point_at,
)
from pyro_manifold.infer.mcmc.riemannian.metric_field import Field, MetricField


class LagrangianStep:
    """``(point, velocity, step_size) -> (point, velocity, log volume change)`` for all chains.

    Args:
        potential: energies and gradients of flat positions.
        field: the metric.
        with_volume: whether the potential that moves the chains includes ½ log|G|.
        reversible: take the Lagrangian kick, whose volume change is known, instead of the cheaper explicit one.

    Attributes:
        graph: the step as a function of tensors.
        operators: how many tensor operators it takes, once it is a graph.
    """

    def __init__(self, potential: FlatPotential, field: MetricField, *, with_volume: bool, reversible: bool) -> None:
        self.with_volume = with_volume
        self._field = field
        self._reversible = reversible
        self.point_at = partial(point_at, potential=potential, field=field, with_volume=with_volume)
        kick = lagrangian_kick if reversible else explicit_kick
        self._leapfrog = partial(leapfrog, kick=kick, potential=potential, with_volume=with_volume)
        # (step size, velocity, *point) to (log volume, velocity, *point).
        self.graph = Trusted(self._flat, "eager")
        self.operators = 0

    def __call__(self, point: Point, velocity: Tensor, step_size: Tensor) -> tuple[Point, Tensor, Tensor]:
        """Where the chains are a step later."""
        # One memory layout: a compiled graph is compiled again for every other.
        inputs = [value.contiguous() for value in (step_size, velocity, *point)]
        log_volume, velocity, *values = self.graph(*inputs)
        return Point(*values), velocity, log_volume

    def trace(
        self,
        point: Point,
        density: Trusted | None = None,
        *,
        compile: bool = False,
        options: Mapping[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        """Replace the step by its graph, and that by a compiled one.

        The transforms of torch.func cost much more than the arithmetic of a step if they are done at each call.

        Args:
            point: where the chains are.
            density: the function that the potential calls, if that is to be a graph itself.
            compile: whether to compile.
            options: keyword arguments for `torch.compile`.
            warn: whether to say so if it fails.
        """
        # Of the size of a draw, but not drawn: looking at the model must not change the draws of a seeded run.
        velocity = point.metric.diagonal(dim1=-2, dim2=-1).rsqrt()
        time = torch.full_like(point.energy, 1e-2)
        example = [value.clone(memory_format=torch.contiguous_format) for value in (time, velocity, *point)]
        elsewhere = [(3 * time, -2 * velocity, *example[2:])]
        failures = {
            "traced": "The step cannot be traced, going on without, which is slow: {reason}.",
            "compiled": "jit_compile=True had no effect, going on without compiling: {reason}.",
        }
        failure = failures if warn else {}

        def as_graph(_: FlatFunction) -> FlatFunction:
            field = _TracedField(self._field, point.position, velocity, self._reversible)
            graph = folded_graph(lambda *values: self._flat(*values, field=field), *example)
            self.operators = sum(node.op == "call_function" for node in graph.graph.nodes)
            return graph

        traced = self.graph.attempt("traced", as_graph, elsewhere, contains=density, failure=failure.get("traced"))
        if traced and compile:
            self.graph.attempt(
                "compiled", lambda graph: compiled(graph, options), elsewhere, failure=failure.get("compiled")
            )

    def of_one_chain(self, velocity: Tensor, point: Point, potential: FlatPotential) -> FlatFunction:
        """The step as a function of tensors ``(1, ...)``, as `graph` is one of all chains.

        Args:
            velocity: to trace with.
            point: where.
            potential: energy and gradient of one chain.
        """
        field = _TracedField(self._field, point.position, velocity, self._reversible)
        move = partial(self._leapfrog, potential=potential, field=field)

        def step(step_size: Tensor, velocity: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            moved, velocity, log_volume = move(Point(*values), velocity, step_size)
            return (log_volume, velocity, *moved)

        return step

    def _flat(
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
