"""Products of all chains with a shared matrix, as one product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_manifold.graphs.storage import without_storage

_FEWEST_OPERATIONS = 1_000_000  # below that, the overhead of each function call exceeds the gain

_ATEN = torch.ops.aten


def join_shared_products(graph: GraphModule) -> GraphModule:
    r"""Replace :math:`(A_1 S, \dots, A_c S)` by one product with S, and :math:`S A_k` by its transpose, in place.

    Data, or a minibatch of them, are the same for all chains; the products of a model with them are the larger part of
    its arithmetic. As one product, with the rows of all chains below each other, they are faster on CPUs than one by
    one, and S is not copied for each.

    Args:
        graph: as `trace` returns it, with shapes in its nodes' metadata.

    Returns:
        The same graph module.
    """
    for node in list(graph.graph.nodes):
        if node.target != _ATEN.bmm.default:
            continue
        left, right = node.args
        values = [_value(graph, argument) for argument in (left, right)]
        if not _pays(*values):
            continue
        with graph.graph.inserting_before(node):
            if _is_shared(values[1]):
                joined = _joined(graph, left, _one_of(graph, right))
            elif _is_shared(values[0]):
                turned = _call(graph, _ATEN.transpose.int, _one_of(graph, left), 0, 1)
                other = _call(graph, _ATEN.transpose.int, right, 1, 2)
                back = _call(graph, _ATEN.transpose.int, _joined(graph, other, turned), 1, 2)
                # Later views were traced for row-major order.
                joined = _call(graph, _ATEN.clone.default, back, memory_format=torch.contiguous_format)
            else:
                continue
        node.replace_all_uses_with(joined)
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _joined(graph: GraphModule, batched: Any, shared: Node) -> Node:
    """Multiply matrices ``(c, m, k)`` by one ``(k, n)``, to ``(c, m, n)``."""
    chains, rows, inner = batched.meta["val"].shape
    columns = shared.meta["val"].shape[1]
    below = _call(graph, _ATEN.reshape.default, batched, [chains * rows, inner])
    return _call(graph, _ATEN.view.default, _call(graph, _ATEN.mm.default, below, shared), [chains, rows, columns])


def _one_of(graph: GraphModule, argument: Any) -> Node:
    return _call(graph, _ATEN.select.int, argument, 0, 0)


def _call(graph: GraphModule, target: Any, *arguments: Any, **options: Any) -> Node:
    node = graph.graph.call_function(target, arguments, options)
    values = [_value(graph, argument) if isinstance(argument, Node) else argument for argument in arguments]
    shapes = [without_storage(value) if isinstance(value, Tensor) else value for value in values]
    node.meta["val"] = target(*shapes, **options)
    return node


def _value(graph: GraphModule, argument: Any) -> Tensor | None:
    if not isinstance(argument, Node):
        return None
    if argument.op == "get_attr":
        value = getattr(graph, str(argument.target))
        argument.meta.setdefault("val", value)
        return value if isinstance(value, Tensor) else None
    value = argument.meta.get("val")
    return value if isinstance(value, Tensor) else None


def _is_shared(value: Tensor | None) -> bool:
    return value is not None and value.stride(0) == 0 and len(value) > 1


def _pays(left: Tensor | None, right: Tensor | None) -> bool:
    return left is not None and right is not None and left.numel() * right.shape[-1] >= _FEWEST_OPERATIONS
