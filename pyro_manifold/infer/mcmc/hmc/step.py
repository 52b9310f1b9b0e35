"""The leapfrog step bound to one potential, as it is or as one compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.graphs.tracing import trace
from pyro_manifold.graphs.trusted import Trusted, compiled
from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics, State, leapfrog_step, refresh
from pyro_manifold.infer.mcmc.hmc.mechanics import Metric
from pyro_manifold.infer.mcmc.states import Potential


class Step:
    """``(state, step_size, metrics) -> state`` for all chains.

    Args:
        potential: positions to energies ``(chains,)`` and Euclidean gradients.
        mechanics: how each block moves.
    """

    def __init__(self, potential: Potential, mechanics: BlockMechanics) -> None:
        self.potential = potential
        self.mechanics = mechanics
        self.graph = Trusted(self._flat, "eager")

    def __call__(self, state: State, step_size: Tensor | float, metrics: Metrics) -> State:
        """The state one step later."""
        if self.graph.is_graph:
            return self._unflatten(self.graph(*self._flatten(state, step_size, metrics)))
        return leapfrog_step(state, step_size, potential=self.potential, mechanics=self.mechanics, metrics=metrics)

    def compile(
        self,
        state: State,
        metrics: Metrics,
        density: Trusted | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        """Trace gradient, kick and drift into one graph and compile it with `torch.compile`.

        Step sizes and masses are inputs of the graph, so that adaptation does not compile again.

        Args:
            state: where the chains are, to trace and to compare at.
            metrics: masses to trace with.
            density: the function that the potential calls, if that is to be a graph itself.
            options: keyword arguments for `torch.compile`.
            warn: whether to say so if it fails.
        """
        # Momenta are drawn by a generator of their own: looking at the model must not change a seeded run.
        random = torch.Generator(state.energy.device).manual_seed(0)
        moving = refresh(state, mechanics=self.mechanics, metrics=metrics, random=random)
        example = [value.clone() for value in self._flatten(moving, 1e-2, metrics)]
        failure = "jit_compile=True had no effect, going on without compiling: {reason}."
        self.graph.attempt(
            "compiled",
            lambda _: compiled(trace(lambda *values: self._flat(*values), *example), options),
            [example],
            contains=density,
            failure=failure if warn else None,
        )

    def _flatten(self, state: State, step_size: Tensor | float, metrics: Metrics) -> tuple[Tensor, ...]:
        # One memory layout and one shape of step sizes: a compiled graph is compiled again for every other.
        energy = state.energy
        sizes = torch.as_tensor(step_size, dtype=energy.dtype, device=energy.device).expand(energy.shape).contiguous()
        parts = [part[block] for part in (state.position, state.momentum, state.gradient) for block in self.mechanics]
        masses = [metrics[block].inverse_mass for block in self.mechanics]
        return (sizes, *masses, *[part.contiguous() for part in (*parts, energy)])

    def _unflatten(self, values: Sequence[Tensor]) -> State:
        blocks, count = list(self.mechanics), len(self.mechanics)
        parts = [dict(zip(blocks, values[k * count : (k + 1) * count], strict=True)) for k in range(3)]
        return State(parts[0], parts[1], values[3 * count], parts[2])

    def _flat(self, step_size: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        count = len(self.mechanics)
        # A step does not use the mass factor of a metric.
        metrics = {block: Metric(x, x) for block, x in zip(self.mechanics, values[:count], strict=True)}
        state = self._unflatten(values[count:])
        after = leapfrog_step(state, step_size, potential=self.potential, mechanics=self.mechanics, metrics=metrics)
        return self._flatten(after, step_size, metrics)[1 + count :]
