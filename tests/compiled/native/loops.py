"""Functions of one chain as native loops, for tests."""

import pytest
import torch

from pyro_manifold.compiled import folded_graph
from pyro_manifold.compiled.native import Loop, NativeLoop, decompositions
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE

OF_A_PROGRAM = 12
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def with_native_code(functions, dtype):
    """Leave out quantiles where torch computes them in double precision, by ranks that depend on NaN."""
    left_to_torch = dtype == torch.float32 and TORCH >= (2, 14)
    return {name: function for name, function in functions.items() if not (left_to_torch and "quantile" in name)}


def graph_of(function, *example):
    with torch.no_grad():
        return folded_graph(function, *example, decompositions=decompositions())


def native_function(function, *inputs):
    """``(chains, ...)`` to the list of what a function of one chain gives, ``(chains, ...)``."""
    if WITHOUT_NATIVE_CODE:
        pytest.skip("native code needs a C compiler, and there is none here")
    return NativeLoop(loop_of(function, *inputs), inputs, len(inputs[0]))


def loop_of(function, *inputs):
    """The graphs of a loop that does nothing but begin."""

    def begin(*values):
        results = function(*[value[0] for value in values])
        return [values[0].flatten()[:1], *[result.unsqueeze(0).to(values[0]) for result in results]]

    one = [value[:1].clone() for value in inputs]
    state, *kept = begin(*one)
    count = len(inputs)
    return Loop(
        graph_of(begin, *one),
        graph_of(lambda *values: [values[count] + 1], *one, state.clone()),
        graph_of(lambda *values: list(values[count:-1]), *one, *[value.clone() for value in kept], state.clone()),
        1,
    )


def in_native(function, *inputs):
    """Apply a function of one chain to each of the chains."""
    return native_function(function, *inputs)(1, *inputs)


def in_torch(function, *inputs):
    """The same by torch, chain by chain."""
    rows = [function(*[value[chain] for value in inputs]) for chain in range(len(inputs[0]))]
    return [torch.stack(parts).to(inputs[0]) for parts in zip(*rows, strict=True)]


def side_by_side(functions, *inputs, exact=None):
    """Yield the name of each function of one chain, its results in native code, and those of torch.

    A program has a dozen of them: one for each takes several times as long, and one for all too long for a compiler
    on a busy machine.

    Args:
        functions: ``{name: function}``.
        *inputs: of all functions, ``(chains, ...)``.
        exact: inputs of torch, if not the same.
    """
    names = list(functions)
    for first in range(0, len(names), OF_A_PROGRAM):
        some = {name: functions[name] for name in names[first : first + OF_A_PROGRAM]}
        expected = {name: in_torch(function, *(exact or inputs)) for name, function in some.items()}
        joined = lambda *values, some=some: [x for function in some.values() for x in function(*values)]  # noqa: E731
        of_all = iter(in_native(joined, *inputs))
        for name, there in expected.items():
            yield name, [next(of_all) for _ in there], [value.to(inputs[0]) for value in there]
