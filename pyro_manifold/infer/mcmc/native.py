"""Iterations of a kernel as native code: each as one call, or several in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

from pyro_manifold.graphs.agreement import FlatFunction
from pyro_manifold.graphs.folding import folded_graph
from pyro_manifold.graphs.native.decompositions import decompositions
from pyro_manifold.graphs.native.emit import Loop
from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.infer.mcmc.states import Statistics

FlatStep = Callable[..., list[Tensor]]
"""Tensors of one chain, ``(1, ...)``, to others."""

_MOST_AT_ONCE = 64
_TIMES_A_CALL = 30
"""So many times the cost of a call is what is done in one: more would gain nothing, and answer an interrupt late."""
_FAILURE = (
    "No native code for this model, which costs time and nothing else: {reason}. "
    "PYRO_MANIFOLD_NATIVE=0 in the environment asks for none."
)


def allowed() -> bool:
    """Whether the user has not switched native code off, by ``PYRO_MANIFOLD_NATIVE=0``."""
    return os.environ.get("PYRO_MANIFOLD_NATIVE", "1") != "0"


class NativeIteration:
    """An iteration of all chains as a function of tensors, and its native form once it has been compiled.

    Args:
        function: ``(*inputs, *state, number of steps)`` to ``(*state, *statistics)``; what the native form stands for.
        state: how many tensors a state has.

    Attributes:
        graph: the function; its form is ``"steps"``, or ``"native"``.
        fixed_cost: how many steps take as long as the rest of an iteration.
    """

    def __init__(self, function: FlatFunction, state: int) -> None:
        self.graph = Trusted(function, "steps", 1)
        self.fixed_cost = 1.0
        self._state = state
        self._loop: NativeLoop | None = None

    @property
    def is_native(self) -> bool:
        """Whether native code is in use."""
        return self.graph.form == "native"

    def compile(self, build: Callable[[], NativeLoop], points: Iterable[Sequence[Tensor]], *, warn: bool) -> None:
        """Use native code from now on, if it can be made and agrees.

        Args:
            build: makes it.
            points: inputs to compare at.
            warn: whether to say so if it fails.
        """
        loops: list[NativeLoop] = []

        def built(_: FlatFunction) -> FlatFunction:
            loops.append(build())
            return lambda *values: tuple(loops[0](int(values[-1]), *values[:-1]))

        if self.graph.attempt("native", built, points, failure=_FAILURE if warn else None):
            self._loop, self.fixed_cost = loops[0], loops[0].steps_of_a_call

    def at_once(self, num_steps: int) -> int:
        """Of how many iterations of so many steps the cost of a call is small beside theirs; 1 without native code."""
        if not self.is_native:
            return 1
        return max(1, min(_MOST_AT_ONCE, int(_TIMES_A_CALL * self.fixed_cost / num_steps)))

    def several(self, num_steps: Sequence[int], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of iterations that follow each other, ``(iterations, chains, ...)``.

        Args:
            num_steps: of each.
            inputs: as of the function; with a row for each iteration in front where they differ.
        """
        assert self._loop is not None
        first = len(inputs) - self._state
        return self._loop.several(num_steps, inputs, {first + k: k for k in range(self._state)})


class Told(NamedTuple):
    """Which statistics an iteration tells, as the last of its outputs.

    Attributes:
        names: of them, in order.
        truths: those that are true or false.
    """

    names: tuple[str, ...]
    truths: frozenset[str]

    def flat(self, statistics: Statistics, like: Tensor) -> list[Tensor]:
        """In the dtype of another tensor."""
        return [statistics[name].to(like) for name in self.names]

    def named(self, values: Sequence[Tensor]) -> Statistics:
        """The same statistics again."""
        found = zip(self.names, values, strict=True)
        return {name: value.bool() if name in self.truths else value for name, value in found}


def drawn(
    draw: Callable[[], Sequence[Tensor]], iterations: int, random: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Random numbers of iterations one after the other, ``(iterations, ...)``, and the generator's state after each."""
    numbers, after = [], []
    for _ in range(iterations):
        numbers.append(draw())
        after.append(random.get_state())
    return [torch.stack(rows) for rows in zip(*numbers, strict=True)], after


def native_loop(
    begin: FlatStep,
    step: FlatStep,
    end: FlatStep,
    carried: int,
    example: Sequence[Tensor],
    chains: int,
    shared: Iterable[int] = (),
) -> NativeLoop:
    """A loop of all chains, compiled.

    Args:
        begin: inputs to the state, followed by what is kept for the end.
        step: inputs and the state to the next state.
        end: inputs, what was kept and the last state to the outputs.
        carried: how many tensors a state has.
        example: inputs, ``(chains or 1, ...)``.
        chains: how many chains.
        shared: numbers of the inputs that are always the same for all chains; these may hold indices.

    Raises:
        NotCoveredError, NotWorthItError, NoCompilerError: if it cannot be compiled.
    """
    one = [value[:1].clone() for value in example]
    with torch.no_grad():
        begun = [value.clone() for value in begin(*one)]
    state, kept = begun[:carried], begun[carried:]
    loop = Loop(
        _graph(begin, *one),
        _graph(step, *one, *state),
        _graph(end, *one, *kept, *[value.clone() for value in state]),
        carried,
        frozenset(shared),
    )
    return NativeLoop(loop, example, chains)


def _graph(function: FlatStep, *example: Tensor) -> fx.GraphModule:
    """The graph of a function in operators of the table."""
    with torch.no_grad():
        return folded_graph(function, *example, decompositions=decompositions())
