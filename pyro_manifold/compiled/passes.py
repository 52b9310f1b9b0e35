"""The passes over graphs, in their order: to add one is to write a rule or a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Graph, GraphModule

from pyro_manifold.compiled import broadcast_sinking, folding, lowering, products, scalings, strides
from pyro_manifold.compiled.folding import is_functional, is_of_values
from pyro_manifold.compiled.functionalisation import compute_new_values, functionalised
from pyro_manifold.compiled.lowering import WITHOUT_BATCHING_RULES
from pyro_manifold.compiled.modules import LazyGraphModule
from pyro_manifold.compiled.rewriting import Rules, remove_dead_code, rewrite, writes
from pyro_manifold.compiled.tracing import trace


class Pass(NamedTuple):
    """A change of a graph.

    Attributes:
        name: its name in the literature on compilers.
        change: rules, or a function that changes the graph in place.
        when: condition on the graph before the first pass of its sequence.
        retraces: whether ``change`` returns another graph, and takes also the inputs and decompositions of a trace.
    """

    name: str
    change: Rules | Callable[..., GraphModule | None]
    when: Callable[[GraphModule], bool] = lambda module: True
    retraces: bool = False


DEAD_CODE = Pass("dead code elimination", remove_dead_code)

FUNCTIONALISATION = (
    Pass("functionalisation", functionalised, writes, retraces=True),
    DEAD_CODE._replace(when=writes),
)

SIMPLIFICATION = (
    Pass("constant folding", folding.fold_constants, is_functional),
    Pass("copy propagation", folding.IDENTITIES, is_functional),
    Pass("algebraic simplification", folding.NEUTRAL_ELEMENTS, is_of_values),
    Pass("common subexpression elimination", folding.share_common_subexpressions, is_functional),
    DEAD_CODE,
    Pass("broadcast sinking", broadcast_sinking.BROADCAST_SINKING, is_of_values),
    DEAD_CODE,
    Pass("factoring of sums", scalings.SUMS_OF_AFFINE_TERMS, is_of_values),
    Pass("reassociation of factors", scalings.FACTORS_OF_FACTORS, is_of_values),
    Pass("fusion of multiplications and additions", scalings.SCALED_SUMS, is_of_values),
    DEAD_CODE,
)
"""Passes over graphs that write to no tensor."""

PRODUCTS = (
    Pass("batching of matrix products", products.PRODUCTS_OF_ALL_CHAINS),
    DEAD_CODE,
    Pass("layout of matrix products", products.SKINNY_PRODUCTS),
)
"""Passes for CPUs, over graphs of many chains."""

WITHOUT_STRIDES = (Pass("gathering of strided views", strides.pick_by_index),)
"""Passes over the graph of one chain that is to be one of many chains by `torch.vmap`."""

VECTORISATION = (
    Pass("functionalisation", partial(functionalised, decompositions=WITHOUT_BATCHING_RULES), retraces=True),
    Pass("lowering for vectorisation", lowering.VECTORISABLE),
)
"""Passes over such a graph if `torch.vmap` refuses it."""

FORWARD_MODE = (Pass("lowering for forward-mode differentiation", lowering.FORWARD_DIFFERENTIABLE), DEAD_CODE)
"""Passes over graphs that `torch.func.jvp` is to differentiate."""


def run(passes: Iterable[Pass], module: GraphModule, *example: Tensor, **options: Any) -> GraphModule:
    """Apply passes in their order to a graph, and return it; it is changed in place unless it is traced again.

    Args:
        passes: the passes.
        module: as `trace` returns it, with shapes in its nodes' metadata.
        *example: its inputs, for passes that trace again.
        **options: of `trace`, for the same passes.
    """
    for _, change, _, retraces in [each for each in passes if each.when(module)]:
        if isinstance(change, Mapping):
            rewrite(module, change)
        else:
            module = (change(module, *example, **options) if retraces else change(module)) or module
    module.recompile()
    return module


def folded_graph(
    function: Callable[..., Any],
    *example: Tensor,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    then: Iterable[Pass] = (),
) -> GraphModule:
    """Trace a function to a graph, functionalise it if it writes to tensors, and simplify it.

    Args:
        function: a function without random numbers.
        *example: inputs to trace with; their shapes are frozen in the graph.
        decompositions: operators and functions that replace them.
        then: passes after those of `SIMPLIFICATION`.
    """
    # A lambda, because the tracer would count the self of a method among the inputs.
    module = trace(lambda *values: function(*values), *example, decompositions=decompositions)
    writing = partial(compute_new_values, decomposed=decompositions or ())
    module = run([DEAD_CODE, Pass("functionalisation of new values", writing, writes)], module)
    module = run(FUNCTIONALISATION, module, *example, decompositions=decompositions)
    return run([*SIMPLIFICATION, *then], module)


def simplified(module: GraphModule, *, then: Iterable[Pass] = ()) -> GraphModule:
    """Return a simplified copy of a graph that writes to no tensor, as `folded_graph` does without tracing it again."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return run([DEAD_CODE, *SIMPLIFICATION, *then], LazyGraphModule(module, graph))
