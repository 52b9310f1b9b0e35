"""Steps as graphs, traced or compiled, and trusted only after a comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.leapfrog import Block, State
from pyro_manifold.infer.mcmc.mechanics import Metric
from pyro_manifold.potential import FactorisationError, agrees
from pyro_manifold.tracing import reason, trace

Metrics = Mapping[Block, Metric]
Step = Callable[[State, Tensor, Metrics], State]
FlatFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors to a tuple of tensors."""

WITHOUT_COMPILING = "jit_compile=True had no effect, going on without compiling"
WITHOUT_TRACING = "The step cannot be traced, going on without, which is slow"


def checked(make: Callable[[], FlatFunction], reference: FlatFunction, *inputs: Tensor) -> FlatFunction:
    """A graph that has been compared with what it stands for.

    Args:
        make: traces or compiles; it can fail in any way.
        reference: the function itself.
        *inputs: where to compare; elsewhere than where it was traced, if a branch on values is to be noticed.

    Raises:
        Exception: whatever ``make`` raises; a ValueError if the graph differs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside torch's own compiler
        graph = make()
        found = graph(*inputs)
    if not all(agrees(value, expected) for value, expected in zip(found, reference(*inputs), strict=True)):
        raise ValueError("the graph of a step differs from the model's")
    return graph


def compiled(graph: Callable[..., Any], options: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The graph by `torch.compile`; shapes are those of its inputs unless ``options`` say otherwise."""
    return torch.compile(graph, **{"dynamic": False, **(options or {})})


def compile_step(
    step: Step, state: State, metrics: Metrics, *, options: dict[str, Any] | None = None, warn: bool = True
) -> Step:
    """Trace gradient, kick and drift of a step into one graph and compile it with `torch.compile`.

    Step size and masses are inputs of the graph, so that adaptation does not compile again. The compiled step is
    compared with the given one before it is trusted.

    Args:
        step: the step to compile; what it falls back to.
        state: a state to trace and to compare with, with momenta drawn.
        metrics: masses to trace with.
        options: keyword arguments for `torch.compile`.
        warn: whether to say so when compiling fails.

    Returns:
        The compiled step, or ``step`` itself if compiling fails.
    """
    blocks = list(state.position)
    count = len(blocks)

    def unflatten(values: Sequence[Tensor]) -> State:
        parts = [dict(zip(blocks, values[k * count : (k + 1) * count], strict=True)) for k in range(3)]
        return State(parts[0], parts[1], values[3 * count], parts[2])

    def flatten(state: State) -> tuple[Tensor, ...]:
        parts = [part[block] for part in (state.position, state.momentum, state.gradient) for block in blocks]
        # One memory layout: a compiled graph is compiled again for every other.
        return tuple(part.contiguous() for part in (*parts, state.energy))

    def flat_step(step_size: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        inverse_masses, rest = values[:count], values[count:]
        # A step does not use the momentum factor of a metric.
        traced_metrics = {
            block: Metric(inverse_mass, inverse_mass)
            for block, inverse_mass in zip(blocks, inverse_masses, strict=True)
        }
        return flatten(step(unflatten(rest), step_size, traced_metrics))

    def inputs(state: State, step_size: Tensor, metrics: Metrics) -> tuple[Tensor, ...]:
        return (step_size, *[metrics[block].inverse_mass for block in blocks], *flatten(state))

    try:
        example = [value.clone() for value in inputs(state, torch.full_like(state.energy[0], 1e-2), metrics)]
        graph = checked(lambda: compiled(trace(flat_step, *example), options), flat_step, *example)
    except Exception as error:  # a compiler can fail in any way; sampling goes on without it
        if warn:
            warnings.warn(f"{WITHOUT_COMPILING}: {reason(error)}", stacklevel=2)
        return step

    def compiled_step(state: State, step_size: Tensor, metrics: Metrics) -> State:
        try:
            return unflatten(graph(*inputs(state, step_size, metrics)))
        except FactorisationError:
            return step(state, step_size, metrics)

    return compiled_step
