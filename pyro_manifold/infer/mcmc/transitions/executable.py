"""Execution of a transition in its fastest verified form: eager, compiled or native code.

A transition runs eagerly, with its step as a graph (compiled by `torch.compile` on request), or as native code for
whole iterations, several of them in one call. The transition itself is independent of its form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import optree
import torch
from torch import Tensor

from pyro_manifold.density.batched import Batch
from pyro_manifold.graphs.agreement import FlatFunction
from pyro_manifold.graphs.native.blame import wrong_operator
from pyro_manifold.graphs.native.loop import NativeLoop, native_loop
from pyro_manifold.graphs.passes import folded_graph
from pyro_manifold.graphs.verified import Verified, Words, compiled
from pyro_manifold.infer.mcmc.transitions.states import Noise, S, Statistics, unbound
from pyro_manifold.infer.mcmc.transitions.trees import Structure

T = TypeVar("T")
Density = Callable[[Batch], Any]
"""Function from a batch (``{}`` for all data) to the density as steps evaluate it, usually a `Potential`."""

_MOST_AT_ONCE = 64
_TIMES_A_CALL = 30
"""Work batched into one call, as a multiple of the cost of a call; more would gain little and delay interrupts."""
_NO_NATIVE_CODE = (
    "No native code for {name}, which costs time and nothing else: {reason}. "
    "PYRO_MANIFOLD_NATIVE=0 in the environment asks for none."
)


def native_code_is_allowed() -> bool:
    """Return False if the environment variable ``PYRO_MANIFOLD_NATIVE=0`` disables native code, else True."""
    return os.environ.get("PYRO_MANIFOLD_NATIVE", "1") != "0"


class PureTransition(Protocol[S, T]):
    """Protocol of a transition as pure functions of trees of tensors, each ``(chains, ...)`` or ``(1, ...)``.

    Settings have an entry ``num_steps``. Other entries that are not tensors are constants in native code. ``begin``
    returns a tree that is updated by steps, and one that is passed unchanged to ``finish``. Control flow does not
    depend on the values of tensors.
    """

    def prepared(self, settings: T, state: S) -> T:
        """Return the settings with tensors for all values that are inputs of native code."""

    def noise(self, state: S, random: torch.Generator) -> Noise: ...

    def begin(self, state: S, settings: T, noise: Noise) -> tuple[Any, Any]: ...

    def step(self, carried: Any, settings: T, noise: Noise, density: Any) -> Any: ...

    def finish(self, carried: Any, kept: Any, settings: T, noise: Noise) -> tuple[S, Statistics]: ...


class Executable(Generic[S, T]):
    """Transition of a run that executes a `PureTransition` in its fastest verified form.

    Args:
        transition: the pure functions begin, step and finish.
        density: density of all chains, as steps evaluate it.

    Attributes:
        step_graph: verified function of tensors for a step, ``"eager"``, ``"traced"`` or ``"compiled"``.
        graph: verified function of tensors for an iteration, ``"steps"`` or ``"native"``.
        operators: number of tensor operators of a step, once it is a graph.
        fixed_cost: cost of an iteration without its steps, in units of a step.
    """

    def __init__(self, transition: PureTransition[S, T], density: Density) -> None:
        self.transition, self.density = transition, density
        self._outputs: list[str] = []  # these three are filled in once trees are known
        self._outputs_of_step: list[str] = []
        self._positions: dict[int, str] = {}
        self.step_graph = Verified(self._flat_step, "eager", words=Words(self._outputs_of_step, self._positions))
        words = Words(self._outputs, self._positions, self._wrong_operator)
        self.graph = Verified(self._flat_iteration, "steps", 1, words)
        self.operators, self.fixed_cost = 0, 1.0
        self._loop: NativeLoop | None = None

    def __call__(self, state: S, settings: T, random: torch.Generator) -> tuple[S, Statistics]:
        """Run one iteration."""
        settings = self.transition.prepared(settings, state)
        state, statistics = self.with_noise(state, settings, self.transition.noise(state, random))
        return state, statistics | _taken(state.energy, settings, [_num_steps(settings)])

    def with_noise(self, state: S, settings: T, noise: Noise) -> tuple[S, Statistics]:
        """Run one iteration with pre-drawn noise and prepared settings."""
        if self.is_native(settings):
            return self._unflattened(self.graph(*self._inputs(state, settings, noise, {})))
        return self._eagerly(state, settings, noise, {})

    def is_native(self, settings: T) -> bool:
        """Return whether native code is used for these settings."""
        return self.graph.form == "native" and self._settings.fits(_with_steps(settings, 0))

    def _eagerly(self, state: S, settings: T, noise: Noise, batch: Batch) -> tuple[S, Statistics]:
        carried, kept = self.transition.begin(state, settings, noise)
        if self.step_graph.is_graph:
            carried = self._by_step_graph(carried, settings)
        else:
            density = self.density(batch)
            for _ in range(_num_steps(settings)):
                carried = self.transition.step(carried, settings, noise, density)
        return self.transition.finish(carried, kept, settings, noise)

    # ---- several iterations in one call -------------------------------------------------------------------------

    def iterations_per_call(self, settings: T) -> int:
        """Return the number of iterations worth batching into one call; 1 without native code."""
        if not self.is_native(settings):
            return 1
        return max(1, min(_MOST_AT_ONCE, int(_TIMES_A_CALL * self.fixed_cost / _num_steps(settings))))

    def iterate(
        self, state: S, settings: Sequence[T], random: torch.Generator
    ) -> tuple[list[S], Statistics, list[Tensor]]:
        """Run iterations in one call of native code, as in `BatchedIterations`; only ``num_steps`` may differ."""
        noise, after = [], []
        for _ in settings:
            noise.append(self.transition.noise(state, random))
            after.append(random.get_state())
        first = self.transition.prepared(settings[0], state)
        steps = [_num_steps(each) for each in settings]
        states, statistics = self.path(state, first, steps, [(numbers, {}) for numbers in noise])
        return unbound(states, len(steps)), statistics | _taken(states.energy, first, steps), after

    def path(
        self, state: S, settings: T, steps: Sequence[int], fresh: Sequence[tuple[Noise, Batch]]
    ) -> tuple[S, Statistics]:
        """Run successive iterations by native code; return states and statistics ``(iterations, chains, ...)``.

        Args:
            state: initial state.
            settings: settings of all iterations.
            steps: number of steps of each iteration.
            fresh: noise and batch of each iteration.
        """
        assert self._loop is not None
        each = [self._fresh.tensors((noise, self._in_rows(batch))) for noise, batch in fresh]
        rows = [torch.stack(column) for column in zip(*each, strict=True)]
        inputs = [*self._state.tensors(state), *self._settings.tensors(settings), *rows]
        return self._unflattened(self._loop.iterate(steps, inputs, {k: k for k in range(len(self._state))}))

    # ---- step as a graph ----------------------------------------------------------------------------------------

    def replace_step(
        self,
        state: S,
        settings: Sequence[T],
        failures: Mapping[str, str],
        *,
        density: Density | None = None,
        contains: Verified | None = None,
        options: Mapping[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        """Replace the step by its graph, and the graph by `torch.compile` if requested.

        Step sizes and masses are inputs of the graph, so that adaptation does not cause recompilation.

        Args:
            state: state at which the step is traced and compared.
            settings: settings; the first are used for tracing, all for comparison.
            failures: ``{"traced" or "compiled": warning if it fails}``.
            density: density to evaluate while tracing, if a faster one than the default exists.
            contains: verified function called by the density, which must be a graph itself.
            options: keyword arguments for `torch.compile`.
            warn: whether to issue a warning if it fails.
        """
        # A separate generator, so that these evaluations do not change a seeded run.
        random = torch.Generator(state.energy.device).manual_seed(0)
        all_settings = [self.transition.prepared(each, state) for each in settings]
        begun = [self.transition.begin(state, each, self.transition.noise(state, random))[0] for each in all_settings]
        self._carried, self._settings = Structure(begun[0]), Structure(_with_steps(all_settings[0], 0))
        self._outputs_of_step[:] = self._carried.names
        points = [[x.clone() for x in self._inputs_of_step(*pair)] for pair in zip(begun, all_settings, strict=True)]

        def traced(_: FlatFunction) -> FlatFunction:
            evaluated = (density or self.density)({})
            graph = folded_graph(lambda *values: self._flat_step(*values, density=evaluated), *points[0])
            self.operators = sum(node.op == "call_function" for node in graph.graph.nodes)
            return graph

        forms = {
            "traced": traced,
            "compiled": lambda graph: compiled(graph if self.operators else traced(graph), options),
        }
        for form, failure in failures.items():
            attempted = self.step_graph.attempt(
                form, forms[form], points, contains=contains, failure=failure if warn else None
            )
            if not attempted:
                break

    def difference_of_step(self, state: S, settings: T, random: torch.Generator) -> str | None:
        """Describe the difference between the step and its graph at this state; None if there is none or no graph."""
        if not self.step_graph.is_graph:
            return None
        settings = self.transition.prepared(settings, state)
        carried, _ = self.transition.begin(state, settings, self.transition.noise(state, random))
        return self.step_graph.difference_at(self._inputs_of_step(carried, settings))

    def _by_step_graph(self, carried: Any, settings: T) -> Any:
        values, count = self._inputs_of_step(carried, settings), len(self._carried)
        for _ in range(_num_steps(settings)):
            values[:count] = [value.contiguous() for value in self.step_graph(*values)]
        return self._carried.tree(values[:count])

    def _inputs_of_step(self, carried: Any, settings: T) -> list[Tensor]:
        # Contiguous, since `torch.compile` recompiles for every other memory layout.
        values = [*self._carried.tensors(carried), *self._settings.tensors(settings)]
        return [value.contiguous() for value in values]

    def _flat_step(self, *values: Tensor, density: Any = None) -> tuple[Tensor, ...]:
        density = self.density({}) if density is None else density
        count = len(self._carried)
        carried, settings = self._carried.tree(values[:count]), self._settings.tree(values[count:])
        return tuple(self._carried.tensors(self.transition.step(carried, settings, Noise({}), density)))

    # ---- iterations as native code ------------------------------------------------------------------------------

    def compile(
        self,
        state: S,
        points: Sequence[tuple[T, Batch]],
        density: Density,
        *,
        rows: list[int] | None = None,
        name: str = "this model",
        warn: bool = True,
    ) -> None:
        """Compile iterations of all chains to native code, and use it from now on if it agrees with the original.

        Step sizes, masses and numbers of steps are inputs and may change later.

        Args:
            state: state at which iterations are traced and compared.
            points: pairs of settings and batch; the first is used for tracing, all for comparison.
            density: traced density of one chain, as steps evaluate it.
            rows: chains to compare, all if None.
            name: name of the model or function in warnings.
            warn: whether to issue a warning if it fails.
        """
        random = torch.Generator().manual_seed(0)  # separate, so that a seeded run is not changed
        given = [(self.transition.prepared(settings, state), batch) for settings, batch in points]
        noise = [self.transition.noise(state, random) for _ in given]
        self._remember(state, *given[0], noise[0])
        inputs = [
            self._inputs(state, settings, numbers, batch)
            for (settings, batch), numbers in zip(given, noise, strict=True)
        ]

        def build(_: FlatFunction) -> FlatFunction:
            self._loop = loop = self._built(density, inputs[0][:-1], len(state.energy))
            return lambda *values: tuple(loop(int(values[-1]), *values[:-1]))

        failure = _NO_NATIVE_CODE.format(name=name, reason="{reason}") if warn else None
        if self.graph.attempt("native", build, inputs, rows=rows, failure=failure) and self._loop is not None:
            self.fixed_cost = self._loop.steps_of_a_call

    def difference(
        self,
        state: S,
        settings: T,
        random: torch.Generator,
        batch: Batch | None = None,
        rows: list[int] | None = None,
    ) -> str | None:
        """Describe the difference between native code and eager steps in one iteration; None without a difference.

        All proposals that are not divergent are accepted in this comparison, so that their end points are compared.
        """
        settings = self.transition.prepared(settings, state)
        if not self.is_native(settings):
            return None
        noise = self.transition.noise(state, random)
        if noise.uniform is not None:
            noise = noise._replace(uniform=torch.zeros_like(noise.uniform))
        return self.graph.difference_at(self._inputs(state, settings, noise, batch or {}), rows)

    def _remember(self, state: S, settings: T, batch: Batch, noise: Noise) -> None:
        """Record the structures of state, settings, noise and batch."""
        self._state, self._settings = Structure(state), Structure(_with_steps(settings, 0))
        self._dtype, self._kinds = state.energy.dtype, {name: value.dtype for name, value in batch.items()}
        self._fresh = Structure((noise, self._in_rows(batch)))
        tensors = self._state.tensors(state)
        self._positions.clear()
        for block, x in state.position.items():
            self._positions[next(k for k, value in enumerate(tensors) if value is x)] = ", ".join(block)

    def _in_rows(self, batch: Batch) -> Batch:
        """Add a leading chain dimension to a batch and convert it to the dtype of the chains."""
        return {name: value.unsqueeze(0).to(self._dtype) for name, value in batch.items()}

    def _inputs(self, state: S, settings: T, noise: Noise, batch: Batch) -> list[Tensor]:
        fresh = self._fresh.tensors((noise, self._in_rows(batch)))
        own = [*self._state.tensors(state), *self._settings.tensors(settings)]
        return [*own, *fresh, torch.tensor(_num_steps(settings))]

    def _given(self, values: Sequence[Tensor]) -> tuple[S, T, Noise, Batch]:
        """Invert `_inputs`, without the number of steps."""
        settings, fresh = len(self._state), len(self._state) + len(self._settings)
        noise, batch = self._fresh.tree(values[fresh:])
        return (
            self._state.tree(values[:settings]),
            self._settings.tree(values[settings:fresh]),
            noise._replace(normal=optree.tree_map(torch.clone, noise.normal)),  # cloned, because it may be overwritten
            {name: value[0].to(self._kinds[name]) for name, value in batch.items()},
        )

    def _flat_iteration(self, *values: Tensor) -> tuple[Tensor, ...]:
        state, settings, noise, batch = self._given(values[:-1])
        return self._flat(*self._eagerly(state, _with_steps(settings, int(values[-1])), noise, batch))

    def _flat(self, state: S, statistics: Statistics) -> tuple[Tensor, ...]:
        values = [value.to(state.energy) for value in self._statistics.tensors(statistics)]
        return (*self._state.tensors(state), *values)

    def _unflattened(self, values: Sequence[Tensor]) -> tuple[S, Statistics]:
        """Invert `_flat`: return state and statistics from flat tensors."""
        count = len(self._state)
        return self._state.tree(values[:count]), self._statistics.tree(values[count:])

    def _built(self, density: Density, example: Sequence[Tensor], chains: int) -> NativeLoop:
        transition, inputs = self.transition, len(example)
        state, settings, noise, batch = self._given([x[:1].clone() for x in example])
        with torch.no_grad():
            begun, start = transition.begin(state, settings, noise)
            ended = transition.step(begun, settings, noise, density(batch))
            _, statistics = transition.finish(ended, start, settings, noise)
        carried, kept, self._statistics = map(Structure, (begun, start, statistics))
        self._outputs[:] = [*self._state.names, *sorted(statistics)]

        def begin(*values: Tensor) -> list[Tensor]:
            after, before = transition.begin(*self._given(values)[:3])
            return [value.clone() for value in (*carried.tensors(after), *kept.tensors(before))]

        def step(*values: Tensor) -> list[Tensor]:
            _, settings, noise, batch = self._given(values[:inputs])
            return carried.tensors(transition.step(carried.tree(values[inputs:]), settings, noise, density(batch)))

        def end(*values: Tensor) -> list[Tensor]:
            _, settings, noise, _ = self._given(values[:inputs])
            before, after = values[inputs : inputs + len(kept)], values[inputs + len(kept) :]
            found = self._flat(*transition.finish(carried.tree(after), kept.tree(before), settings, noise))
            return [value.clone() if any(value is x for x in values) else value for value in found]

        shared = range(inputs - len(self._kinds), inputs)
        return native_loop(begin, step, end, len(carried), example, chains, shared)

    def _wrong_operator(self, _: FlatFunction, inputs: Sequence[Tensor], chain: int) -> str | None:
        """Return the operator that causes a difference in native code, or None if it cannot be found."""
        if self._loop is None:
            return None
        given = [value[chain : chain + 1] if len(value) > 1 else value for value in inputs[:-1]]
        try:
            return wrong_operator(self._loop.loop, given, int(inputs[-1]))
        except Exception:  # native code of another shape can fail in any way; the operator is optional information
            return None


def _num_steps(settings: Any) -> int:
    return int(settings.num_steps)


def _with_steps(settings: T, num_steps: int) -> T:
    found: T = settings._replace(num_steps=num_steps)  # type: ignore[attr-defined]
    return found


def _taken(energy: Tensor, settings: Any, num_steps: Sequence[int]) -> Statistics:
    """Return step sizes (if there are any) and numbers of steps of iterations, expanded to the shape of energies."""
    steps = torch.tensor(num_steps) if len(num_steps) == 1 else torch.tensor(num_steps).unsqueeze(1)
    taken = {"n_steps": steps.expand_as(energy)}
    return {"step_size": settings.step_size.expand_as(energy), **taken} if hasattr(settings, "step_size") else taken
