"""The step of a transition as a graph of tensors, compiled by `torch.compile` on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pyro_manifold.compiled import FlatFunction, Labels, Verified, compiled, folded_graph
from pyro_manifold.density import Batch
from pyro_manifold.infer.mcmc.transitions.states import Noise, PureTransition, S, num_steps_of
from pyro_manifold.infer.mcmc.transitions.trees import Structure, trees

T = TypeVar("T")
Density = Callable[[Batch], Any]
"""Function from a batch (``{}`` for all data) to the density as steps evaluate it, usually a `Potential`."""


class StepGraph(Generic[S, T]):
    """Steps of a pure transition: eager, or by a graph of one step, which then must not use noise.

    Step sizes and masses are inputs of the graph, so that adaptation does not cause recompilation.

    Attributes:
        graph: verified function of tensors for a step, ``"eager"``, ``"traced"`` or ``"compiled"``.
        operators: number of tensor operators of a step, once it is a graph.
    """

    def __init__(self, transition: PureTransition[S, T], density: Density) -> None:
        self._transition, self._density = transition, density
        self.graph, self.operators = Verified(self._flat, "eager"), 0

    def repeated(self, carried: Any, settings: Any, noise: Noise, batch: Batch) -> Any:
        """Run the steps of an iteration."""
        if not self.graph.is_graph or not self._structures[1].is_like(settings):
            density = self._density(batch)
            for _ in range(num_steps_of(settings)):
                carried = self._transition.step(carried, settings, noise, density)
            return carried
        values, count = self.inputs(carried, settings), len(self._structures[0])
        for _ in range(num_steps_of(settings)):
            values[:count] = [value.contiguous() for value in self.graph(*values)]
        return self._structures[0].tree(values[:count])

    def replace(
        self,
        state: S,
        settings: Sequence[T],
        failures: Mapping[str, str | None],
        *,
        density: Density | None = None,
        contains: Verified | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace the step by its graph, and the graph by `torch.compile` if requested.

        Args:
            state: state at which the step is traced and compared.
            settings: settings; the first are used for tracing, all for comparison.
            failures: ``{"traced" or "compiled": warning if it fails, None for no warning}``.
            density: density to evaluate while tracing, if a faster one than the default exists.
            contains: verified function called by the density, which must be a graph itself.
            options: keyword arguments for `torch.compile`.
        """
        # A separate generator, so that these evaluations do not change a seeded run.
        random = torch.Generator(state.energy.device).manual_seed(0)
        begun = [self._begun(state, each, random) for each in settings]
        self._structures = [Structure(tree) for tree in begun[0]]
        self.graph.labels = Labels(self._structures[0].names)
        points = [[value.clone() for value in self.inputs(*pair)] for pair in begun]

        def traced(_: FlatFunction) -> FlatFunction:
            evaluated = (density or self._density)({})
            graph = folded_graph(lambda *values: self._flat(*values, density=evaluated), *points[0])
            self.operators = sum(node.op == "call_function" for node in graph.graph.nodes)
            return graph

        forms = {
            "traced": traced,
            "compiled": lambda graph: compiled(graph if self.operators else traced(graph), options),
        }
        for form, failure in failures.items():
            if not self.graph.attempt(form, forms[form], points, contains=contains, failure=failure):
                break

    def difference(self, state: S, settings: T, random: torch.Generator) -> str | None:
        """Describe the difference between the step and its graph at this state; None if there is none or no graph."""
        if not self.graph.is_graph or not self._structures[1].is_like(settings):
            return None
        return self.graph.difference_at(self.inputs(*self._begun(state, settings, random)))

    def inputs(self, carried: Any, settings: T) -> list[Tensor]:
        """Return the inputs of the graph, contiguous, since `torch.compile` recompiles for other memory layouts."""
        both = zip(self._structures, (carried, settings), strict=True)
        return [value.contiguous() for structure, tree in both for value in structure.tensors(tree)]

    def _begun(self, state: S, settings: T, random: torch.Generator) -> tuple[Any, T]:
        settings = self._transition.prepared(settings, state)
        noise = self._transition.noise(state, random)
        return self._transition.begin(state, settings, noise, self._density({}))[0], settings

    def _flat(self, *values: Tensor, density: Any = None) -> tuple[Tensor, ...]:
        carried, settings = trees(self._structures, values)
        density = self._density({}) if density is None else density
        return tuple(self._structures[0].tensors(self._transition.step(carried, settings, Noise({}), density)))
