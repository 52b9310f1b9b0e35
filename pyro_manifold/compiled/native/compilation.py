"""Compilation of functions of one chain, and comparison of the compiled loop with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pyro_manifold.compiled.agreement import difference
from pyro_manifold.compiled.native.carried import reusing
from pyro_manifold.compiled.native.decompositions import decompositions
from pyro_manifold.compiled.native.emit import Loop
from pyro_manifold.compiled.native.loop import NativeLoop, check_rows
from pyro_manifold.compiled.passes import folded_graph

FlatStep = Callable[..., list[Tensor]]
"""Function from tensors of one chain, ``(1, ...)``, to others."""

_COMPARED_STEPS = 2  # the second step begins at a state that the first has made
_COMPARED_CHAINS = 4  # a few suffice; evaluating the functions themselves is slow


def compile_loop(
    begin: FlatStep,
    step: FlatStep,
    end: FlatStep,
    carried: int,
    example: Sequence[Tensor],
    chains: int,
    *,
    shared: int = 0,
    compared: int = _COMPARED_STEPS,
) -> NativeLoop:
    """Compile a loop of all chains, and compare it with the functions at the example.

    Args:
        begin: function from inputs to the state, followed by values that are kept for the end.
        step: function from inputs and the state to the next state.
        end: function from inputs, kept values and the last state to the outputs.
        carried: number of tensors in a state.
        example: inputs, ``(chains or 1, ...)``.
        chains: number of chains.
        shared: number of the last inputs that are the same for all chains in every call; these may be used as indices.
        compared: number of steps of the comparison; 0 for none.

    Raises:
        UnsupportedOperatorError, NoSpeedupError, NoCompilerError: if it cannot be compiled.
        ValueError: for functions that return no lists, a step that returns another state than it gets, or a loop that
            differs from its functions, as one does that draws random numbers or counts its calls.
    """
    example = list(example)
    check_rows("compile_loop", example)
    one = [value[:1].clone() for value in example]
    begun = _list("begin", begin, one)
    state, kept = begun[:carried], begun[carried:]
    if len(state) < carried or not 0 <= shared <= len(example):
        raise ValueError(
            f"compile_loop: carried={carried} and shared={shared}, expected at most the {len(begun)} tensors "
            f"that begin returns, and at most the {len(example)} inputs."
        )
    if compared:
        _check_state(_list("step", step, [*one, *state]), state)
        _list("end", end, [*one, *kept, *state])
    found = Loop(
        _graph(begin, *one),
        _graph(step, *one, *state),
        _graph(end, *one, *kept, *[value.clone() for value in state]),
        carried,
        _last(shared, example),
    )
    loop = NativeLoop(reusing(found), example, chains)

    def of_one_chain(*values: Tensor) -> list[Tensor]:
        begun = begin(*values)
        state, kept = begun[:carried], begun[carried:]
        for _ in range(compared):
            state = step(*values, *state)
        return end(*values, *kept, *state)

    if compared:
        _compare("compile_loop", lambda *values: loop(compared, *values), of_one_chain, example, chains)
    return loop


def compile_sum(function: FlatStep, example: Sequence[Tensor], chains: int, *, shared: int = 0) -> NativeLoop:
    """Compile a function of one chain whose outputs are summed over chains; call it with 0 steps.

    Args:
        function: function from tensors of one chain, ``(1, ...)``, to others.
        example: inputs, ``(chains or 1, ...)``.
        chains: number of chains.
        shared: number of the last inputs that are the same for all chains in every call; these may be used as indices.

    Raises:
        UnsupportedOperatorError, NoSpeedupError, NoCompilerError: if it cannot be compiled.
    """
    return _without_steps(function, example, chains, shared=shared, summed=True)


def compile_function(function: Callable[..., Sequence[Tensor]], example: Sequence[Tensor], chains: int) -> NativeLoop:
    """Compile a function of one chain as `compile_sum` does, with outputs of each chain, ``(chains, ...)``."""
    return _without_steps(function, example, chains, summed=False)


def _without_steps(
    function: Callable[..., Sequence[Tensor]],
    example: Sequence[Tensor],
    chains: int,
    *,
    summed: bool,
    shared: int = 0,
) -> NativeLoop:
    one = [value[:1].clone() for value in example]
    nothing = _graph(lambda *values: [], *one)
    end = _graph(function, *one)
    outputs = range(len(end.graph.output_node().args[0])) if summed else ()  # type: ignore[arg-type]
    return NativeLoop(Loop(nothing, nothing, end, 0, _last(shared, example), frozenset(outputs)), example, chains)


def _last(number: int, inputs: Sequence[Tensor]) -> frozenset[int]:
    return frozenset(range(len(inputs) - number, len(inputs)))


def _graph(function: Callable[..., Sequence[Tensor]], *example: Tensor) -> fx.GraphModule:
    """Return the graph of a function in operators of the table."""
    with torch.no_grad():
        return folded_graph(function, *example, decompositions=decompositions())


def _list(name: str, function: FlatStep, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of a function at copies of its inputs; raise ValueError if they are no list of tensors."""
    with torch.no_grad():
        found: Any = function(*[value.clone() for value in inputs])
        if not isinstance(found, list | tuple) or not all(isinstance(x, Tensor) and x.dim() for x in found):
            raise ValueError(f"compile_loop: {name} returns {found!r}, expected a list of tensors (1, ...).")
        return [value.clone() for value in found]


def _check_state(after: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    if len(after) != len(before):
        raise ValueError(f"compile_loop: step returns {len(after)} tensors, expected carried={len(before)}.")
    for number, (found, expected) in enumerate(zip(after, before, strict=True)):
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise ValueError(
                f"compile_loop: step returns {tuple(found.shape)} of {found.dtype} for tensor {number} of the state, "
                f"which begin returns as {tuple(expected.shape)} of {expected.dtype}: expected the same."
            )


def _compare(
    name: str,
    found: Callable[..., list[Tensor]],
    expected: FlatStep,
    example: Sequence[Tensor],
    chains: int,
) -> None:
    """Raise ValueError if a compiled function of all chains differs from that of one chain at the example."""
    few = range(min(chains, _COMPARED_CHAINS))

    def chain_by_chain(*inputs: Tensor) -> tuple[Tensor, ...]:
        rows = [[value[k : k + 1] if len(value) == chains else value for value in inputs] for k in few]
        with torch.no_grad():
            parts = [expected(*[value.clone() for value in row]) for row in rows]
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    first, again = (chain_by_chain(*example) for _ in range(2))
    if not all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(first, again, strict=True)):
        raise ValueError(
            f"{name}: the functions return other values when they are called again with the same inputs: random "
            "numbers must be inputs, and values from outside constant."
        )
    differs = difference(
        lambda *inputs: tuple(value[: len(few)] for value in found(*inputs)), chain_by_chain, list(example)
    )
    if differs is not None:
        raise ValueError(
            f"{name}: the compiled code differs from the functions, {differs.described()}; they must depend on their "
            "inputs alone, without a branch on values."
        )
