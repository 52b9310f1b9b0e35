"""Functions of one chain as native loops, for tests."""

import pytest
import torch

from pyro_manifold.graphs.native.decompositions import decompositions
from pyro_manifold.graphs.native.emit import Loop
from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.graphs.passes import folded_graph

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def skip_quantiles(name, dtype):
    """Skip where torch computes them in double precision, by ranks that depend on NaN."""
    if name.startswith("quantile") and dtype == torch.float32 and TORCH >= (2, 14):
        pytest.skip("torch computes quantiles of float32 in float64 there, which has no native code")


def graph_of(function, *example):
    with torch.no_grad():
        return folded_graph(function, *example, decompositions=decompositions())


def native_function(function, *inputs):
    """``(chains, ...)`` to the list of what a function of one chain gives, ``(chains, ...)``."""
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
