"""Execution of a pure transition in its fastest verified form: eager, with its step as a graph, or as native code.

Native code runs whole iterations, several of them in one call. The transition itself is independent of its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import optree
import torch
from torch import Tensor

from pyro_manifold.compiled import FlatFunction, Labels, Verified
from pyro_manifold.compiled.native import NativeLoop, compile_loop, wrong_operator_of
from pyro_manifold.density import Batch
from pyro_manifold.infer.mcmc.transitions.lookahead import Together
from pyro_manifold.infer.mcmc.transitions.states import (
    Noise,
    PureTransition,
    S,
    Statistics,
    Unchanged,
    check_returns,
    num_steps_of,
)
from pyro_manifold.infer.mcmc.transitions.step_graph import Density, StepGraph
from pyro_manifold.infer.mcmc.transitions.trees import Structure, of_tensors, trees

T = TypeVar("T")

_MOST_AT_ONCE = 64
_TIMES_A_CALL = 30
"""Work batched into one call, as a multiple of the cost of a call; more would gain little and delay interrupts."""
_NO_NATIVE_CODE = (
    "No native code for {name}, which only makes it slower: {reason}. Set PYRO_MANIFOLD_NATIVE=0 in the "
    "environment to disable native code without this warning."
)


class Executable(Generic[S, T]):
    """Transition of a run that executes a `PureTransition` in its fastest verified form.

    Args:
        transition: the pure functions begin, step and finish.
        density: density of all chains, as steps evaluate it.

    Attributes:
        step: the steps, eager or as a graph.
        graph: verified function of tensors for an iteration, ``"steps"`` or ``"native"``.
        fixed_cost: cost of an iteration without its steps, in units of a step.
    """

    def __init__(self, transition: PureTransition[S, T], density: Density) -> None:
        self.transition, self.density = transition, density
        self.step = StepGraph(transition, density)
        self.graph, self.fixed_cost = Verified(self._flat, "steps", 1), 1.0
        self._loop: NativeLoop | None = None
        self._is_checked = False

    def __call__(self, state: S, settings: T, random: torch.Generator) -> tuple[S, Statistics]:
        """Run one iteration."""
        settings = self.transition.prepared(settings, state)
        state, statistics = self.with_noise(state, settings, self.transition.noise(state, random))
        return state, statistics | _taken(state.energy, settings, [num_steps_of(settings)])

    def with_noise(self, state: S, settings: T, noise: Noise) -> tuple[S, Statistics]:
        """Run one iteration with pre-drawn noise and prepared settings."""
        if self.is_native(settings):
            ended: tuple[S, Statistics] = self._ended.tree(self.graph(*self._tensors(state, settings, noise, {})))
            return ended
        return self._eagerly(state, settings, noise, {})

    def is_native(self, settings: T) -> bool:
        """Return whether native code is used for these settings."""
        return self.graph.backend == "native" and self._settings.fits(_with_steps(settings, 0))

    def _eagerly(self, state: S, settings: T, noise: Noise, batch: Batch) -> tuple[S, Statistics]:
        transition, unchanged = self.transition, None if self._is_checked else Unchanged(state)
        begun = transition.begin(state, settings, noise, self.density(batch))
        check_returns(transition, "begin", begun, "a tuple of two trees, carried and kept", unchanged=unchanged)
        moved = self.step.repeated(begun[0], settings, noise, batch)
        like = f"a {type(begun[0]).__name__}, as begin does"
        check_returns(transition, "step", moved, like, begun[0], unchanged=unchanged)
        ended = transition.finish(moved, begun[1], settings, noise)
        check_returns(transition, "finish", ended, "a tuple of the next state and statistics", unchanged=unchanged)
        self._is_checked = True
        check_returns(transition, "finish", ended[0], f"a {type(state).__name__} as the next state", state)
        return ended

    # ---- batched iterations -------------------------------------------------------------------------

    def iterations_per_call(self, settings: T) -> int:
        """Return the number of iterations worth batching into one call; 1 without native code."""
        if not self.is_native(settings):
            return 1
        return max(1, min(_MOST_AT_ONCE, int(_TIMES_A_CALL * self.fixed_cost / num_steps_of(settings))))

    def iterate(
        self, state: S, settings: Sequence[T], random: torch.Generator, *, rewindable: bool = True
    ) -> Together[S]:
        """Run iterations in one call of native code, as in `BatchedIterations`; only ``num_steps`` may differ."""
        noise, after = [], []
        for _ in settings:
            noise.append(self.transition.noise(state, random))
            if rewindable:
                after.append(random.get_state())
        first = self.transition.prepared(settings[0], state)
        steps = [num_steps_of(each) for each in settings]
        states, statistics = self.path(state, first, steps, [(numbers, {}) for numbers in noise])
        statistics = statistics | _taken(states.energy, first, steps)
        return Together(states, statistics, lambda k: of_tensors(lambda x: x[k], states), after)

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
        each = [self._fresh.tensors((noise, _in_rows(batch))) for noise, batch in fresh]
        rows = [torch.stack(column) for column in zip(*each, strict=True)]
        inputs = [*self._state.tensors(state), *self._settings.tensors(settings), *rows]
        ended: tuple[S, Statistics] = self._ended.tree(
            self._loop.iterate(steps, inputs, {k: k for k in range(len(self._state))})
        )
        return ended

    # ---- native code --------------------------------------------------------------------------------------------

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
        self.graph.use_reference()  # code compiled for settings of another structure
        random, dtype = torch.Generator().manual_seed(0), state.energy.dtype  # so that a seeded run is not changed
        given = [
            (self.transition.prepared(settings, state), self.transition.noise(state, random), batch)
            for settings, batch in points
        ]
        settings, noise, batch = given[0]
        self._state, self._settings = Structure(state, dtype), Structure(_with_steps(settings, 0), dtype)
        self._fresh = Structure((noise, _in_rows(batch)), dtype)
        inputs = [self._tensors(state, *each) for each in given]
        places = {k: ", ".join(b) for b, x in state.position.items() for k, value in enumerate(inputs[0]) if value is x}

        def build(_: FlatFunction) -> FlatFunction:
            self._loop = loop = self._built(density, inputs[0][:-1], len(state.energy), len(batch))
            self.graph.labels = Labels(self._ended.names, places, wrong_operator_of(loop.loop))
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
            noise = noise._replace(uniform=of_tensors(torch.zeros_like, noise.uniform))
        return self.graph.difference_at(self._tensors(state, settings, noise, batch or {}), rows)

    def _tensors(self, state: S, settings: T, noise: Noise, batch: Batch) -> list[Tensor]:
        """Return the inputs of an iteration, the last of which is the number of steps."""
        fresh = self._fresh.tensors((noise, _in_rows(batch)))
        steps = torch.tensor(num_steps_of(settings))
        return [*self._state.tensors(state), *self._settings.tensors(settings), *fresh, steps]

    def _trees(self, values: Sequence[Tensor], *more: Structure) -> tuple[Any, ...]:
        """Return state, settings, noise and batch from their tensors, and trees of other structures that follow."""
        structures = (self._state, self._settings, self._fresh, *more)
        state, settings, (noise, batch), *others = trees(structures, values)
        noise = noise._replace(normal=optree.tree_map(torch.clone, noise.normal))  # because it may be overwritten
        return state, settings, noise, {name: value[0] for name, value in batch.items()}, *others

    def _flat(self, *values: Tensor) -> tuple[Tensor, ...]:
        state, settings, noise, batch = self._trees(values[:-1])
        return tuple(self._ended.tensors(self._eagerly(state, _with_steps(settings, int(values[-1])), noise, batch)))

    def _built(self, density: Density, example: Sequence[Tensor], chains: int, batches: int) -> NativeLoop:
        transition, dtype = self.transition, example[0].dtype
        state, settings, noise, batch = self._trees([value[:1].clone() for value in example])
        with torch.no_grad():
            begun, start = transition.begin(state, settings, noise, density(batch))
            ended = transition.finish(transition.step(begun, settings, noise, density(batch)), start, settings, noise)
        carried, kept, self._ended = (Structure(tree, dtype) for tree in (begun, start, ended))

        def begin(*values: Tensor) -> list[Tensor]:
            state, settings, noise, batch = self._trees(values)
            after, before = transition.begin(state, settings, noise, density(batch))
            return [value.clone() for value in (*carried.tensors(after), *kept.tensors(before))]

        def step(*values: Tensor) -> list[Tensor]:
            _, settings, noise, batch, before = self._trees(values, carried)
            return carried.tensors(transition.step(before, settings, noise, density(batch)))

        def end(*values: Tensor) -> list[Tensor]:
            _, settings, noise, _, before, after = self._trees(values, kept, carried)
            found = self._ended.tensors(transition.finish(after, before, settings, noise))
            return [value.clone() if any(value is x for x in values) else value for value in found]

        # Not compared here: `compile` compares it at all of its points.
        return compile_loop(begin, step, end, len(carried), example, chains, shared=batches, compared=0)


def _with_steps(settings: T, num_steps: int) -> T:
    found: T = settings._replace(num_steps=num_steps)  # type: ignore[attr-defined]
    return found


def _in_rows(batch: Batch) -> Batch:
    return {name: value.unsqueeze(0) for name, value in batch.items()}


def _taken(energy: Tensor, settings: Any, num_steps: Sequence[int]) -> Statistics:
    """Return step sizes (if there are any) and numbers of steps of iterations, expanded to the shape of energies."""
    steps = torch.tensor(num_steps) if len(num_steps) == 1 else torch.tensor(num_steps).unsqueeze(1)
    taken = {"n_steps": steps.expand_as(energy)}
    return {"step_size": settings.step_size.expand_as(energy), **taken} if hasattr(settings, "step_size") else taken
