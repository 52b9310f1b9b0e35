"""Functionalisation: graphs that write to tensors as graphs of functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, functionalize
from torch.fx import Graph, GraphModule, Node

from pyro_manifold.compiled.modules import LazyGraphModule
from pyro_manifold.compiled.rewriting import ATEN, Rules, call, example, is_in_place, rewrite
from pyro_manifold.compiled.tracing import trace

_COMPARISONS = {"eq_", "ge_", "gt_", "le_", "lt_", "ne_"}


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


def compute_new_values(module: GraphModule, *, decomposed: Container[Any] = ()) -> None:
    """Replace elementwise writes to values of the graph's own, without views so far, by operators not in place.

    A graph without other writes need not be traced again, which takes longer than all else that is done with it.

    Args:
        module: a traced graph, changed in place.
        decomposed: operators that it may not have.
    """
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    for node in list(module.graph.nodes):
        compute = _not_in_place(node)
        if compute is None or compute in decomposed or not _keeps_kind(node):
            continue
        before = {user for user in node.args[0].users if places[user] < places[node]}
        if not all(_is_new(source) for source in (node.args[0], *before)):
            continue
        with module.graph.inserting_before(node):
            changed = call(module.graph, compute, node.args, dict(node.kwargs), node.meta["val"])
        places[changed] = places[node]
        for user in [*node.users, *(node.args[0].users.keys() - before - {changed, node})]:
            user.replace_input_with(node, changed)
            user.replace_input_with(node.args[0], changed)
        module.graph.erase_node(node)


def _is_new(node: Node) -> bool:
    """Return whether all that a node returns is in memory of its own."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(value.alias_info is None for value in schema.returns)


def _keeps_kind(node: Node) -> bool:
    """Return whether an elementwise operator that is not in place has a result of the dtype and layout of the first."""
    name = _name(node)
    first, *others = [example(source) for source in node.all_input_nodes]
    others = others[1:] if name == "masked_fill_" else others  # the mask
    if first is None or not first.is_contiguous() or not all(x is not None and x.dtype == first.dtype for x in others):
        return False
    return first.dtype == torch.bool or not (name.startswith("logical_") or name in _COMPARISONS)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _copy_of_new_values(module: GraphModule, node: Node) -> Node | None:
    """Replace an elementwise operator in place by a copy of the result of the operator that is not in place."""
    compute = _not_in_place(node)
    if compute is None:
        return None
    changed = module.graph.call_function(compute, node.args, node.kwargs)
    return module.graph.call_function(ATEN.copy_.default, (node.args[0], changed))


def _not_in_place(node: Node) -> Any:
    """Return the operator that computes what an elementwise operator writes; None for any other node."""
    name = _name(node)
    if node.op != "call_function" or not is_in_place(node) or not name.endswith("_"):
        return None
    packet = getattr(ATEN, name[:-1], None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    # Overloads are matched by arguments, since their names may differ: pow_.Scalar is pow.Tensor_Scalar.
    found = (overload for overload in overloads if _arguments(overload) == _arguments(node.target))
    # The tags are those of the result: of torch's operators in place, masked_fill_ is not marked as elementwise.
    return next((overload for overload in found if _is_elementwise_function(overload.tags)), None)


def _is_elementwise_function(tags: Container[Any]) -> bool:
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _arguments(operator: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


_IN_PLACE: Rules = {torch.Tag.pointwise: _copy_of_new_values}
