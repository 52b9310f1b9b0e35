"""Functionalisation: graphs that write to tensors as graphs of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, functionalize
from torch.fx import Graph, GraphModule, Node

from pyro_manifold.graphs.rewriting import ATEN, VIEW, Rules, call, is_in_place, rewrite
from pyro_manifold.graphs.tracing import trace


def functionalised(
    module: GraphModule, *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> GraphModule:
    """Return the functionalised graph: only constants that the graph leaves changed are still changed in place.

    Constants are made inputs meanwhile: a copy of one may be written to, and torch refuses that for unknown tensors.

    Args:
        module: a traced graph.
        *example: its inputs.
        decompositions: operators and functions that replace them, also if they result from functionalisation.
    """
    # To functionalise other in-place operators, torch infers their shapes, and for that imports its compiler.
    module = GraphModule(module, _copy(module.graph))
    rewrite(module, _IN_PLACE)
    module.recompile()
    constants = dict([*module.named_parameters(), *module.named_buffers()])

    def function(constants: dict[str, Tensor], *values: Tensor) -> Any:
        return functional_call(module, constants, values)

    functional = functionalize(function, remove="mutations")
    return trace(lambda *values: functional(constants, *values), *example, decompositions=decompositions)


def _copy(graph: Graph) -> Graph:
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


# ---- elementwise operators in place --------------------------------------------------------------------------------


def _copy_of_new_values(module: GraphModule, node: Node) -> Node | None:
    """Replace an elementwise operator in place by a copy of the result of the operator that is not in place."""
    operator: Any = node.target
    name = str(operator).removeprefix("aten.").partition(".")[0]
    if not is_in_place(node) or not name.endswith("_"):
        return None
    packet = getattr(ATEN, name[:-1], None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    # By their arguments, since overloads need not have the same name: pow_.Scalar is pow.Tensor_Scalar.
    compute = next((overload for overload in overloads if _arguments(overload) == _arguments(operator)), None)
    if compute is None:
        return None
    changed = module.graph.call_function(compute, node.args, node.kwargs)
    return module.graph.call_function(ATEN.copy_.default, (node.args[0], changed))


def _arguments(operator: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


_IN_PLACE: Rules = {torch.Tag.pointwise: _copy_of_new_values}


# ---- results for which `torch.vmap` has no rule --------------------------------------------------------------------


def _copied(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return the result of copying one tensor into another, with the memory layout of the latter."""
    order, back = _order_in_memory(to)
    return source.to(to).expand(to.shape).permute(order).contiguous().permute(back)


def _put_strided(to: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    order, back = _order_in_memory(to)
    lying = to.permute(order)
    if not lying.is_contiguous():
        raise ValueError("a write through strides into what is not contiguous")
    first = 0 if offset is None else offset - to.storage_offset()
    places = torch.arange(to.numel(), device=to.device).as_strided(size, stride, first)
    return lying.reshape(-1).index_put([places], source).view(lying.shape).permute(back)


def _order_in_memory(x: Tensor) -> tuple[list[int], list[int]]:
    """Return the dimensions in the order of decreasing strides, and the inverse permutation."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return order, [order.index(d) for d in range(x.dim())]


WITHOUT_BATCHING_RULES: dict[Any, Callable[..., Any]] = {
    ATEN.copy.default: _copied,
    ATEN.fill.Tensor: _copied,
    ATEN.as_strided_scatter.default: _put_strided,
}


def _count_from_the_start(module: GraphModule, node: Node) -> Node:
    """Normalise the bounds of a slice: not counted from the end, nor beyond it."""
    arguments: list[Any] = list(node.args)
    arguments += [0, None, None, 1][len(arguments) - 2 :]
    arguments[3:5] = slice(*arguments[3:5]).indices(node.meta["val"].shape[arguments[2]])[:2]
    return call(module.graph, node.target, tuple(arguments), value=node.meta["val"])


def _reshape(module: GraphModule, node: Node) -> Node:
    """Replace a view, for memory layouts differ with many chains, and nothing is written."""
    return call(module.graph, ATEN.reshape.default, node.args, value=node.meta["val"])


VECTORISABLE: Rules = {ATEN.slice_scatter.default: _count_from_the_start, VIEW: _reshape}
