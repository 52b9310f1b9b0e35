"""Functionalisation: graphs that write to tensors as graphs of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, functionalize
from torch.fx import Graph, GraphModule, Node

from pyro_manifold.compiled.modules import LazyGraphModule
from pyro_manifold.compiled.rewriting import ATEN, Rules, is_in_place, rewrite
from pyro_manifold.compiled.tracing import trace


def functionalised(
    module: GraphModule, *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> GraphModule:
    """Return the functionalised graph: only constants that the graph leaves changed are still changed in place.

    Constants are inputs during the transformation: a copy of one may be written to, for which torch raises an error if
    the tensor is not an input.

    Args:
        module: a traced graph.
        *example: its inputs.
        decompositions: operators and functions that replace them, also if they result from functionalisation.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    module = LazyGraphModule(module, graph)
    # For other in-place operators torch infers the shape, for which it imports its compiler, which takes a second.
    rewrite(module, _IN_PLACE)
    module.recompile()
    constants = dict([*module.named_parameters(), *module.named_buffers()])

    def function(constants: dict[str, Tensor], *values: Tensor) -> Any:
        return functional_call(module, constants, values)

    functional = functionalize(function, remove="mutations")
    return trace(lambda *values: functional(constants, *values), *example, decompositions=decompositions)


def _copy_of_new_values(module: GraphModule, node: Node) -> Node | None:
    """Replace an elementwise operator in place by a copy of the result of the operator that is not in place."""
    operator: Any = node.target
    name = str(operator).removeprefix("aten.").partition(".")[0]
    if not is_in_place(node) or not name.endswith("_"):
        return None
    packet = getattr(ATEN, name[:-1], None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    # Overloads are matched by arguments, since their names may differ: pow_.Scalar is pow.Tensor_Scalar.
    compute = next((overload for overload in overloads if _arguments(overload) == _arguments(operator)), None)
    if compute is None:
        return None
    changed = module.graph.call_function(compute, node.args, node.kwargs)
    return module.graph.call_function(ATEN.copy_.default, (node.args[0], changed))


def _arguments(operator: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


_IN_PLACE: Rules = {torch.Tag.pointwise: _copy_of_new_values}
