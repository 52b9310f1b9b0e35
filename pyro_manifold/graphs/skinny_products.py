"""Products with a narrow matrix, computed as the product of transposes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_MOST_COLUMNS = 10
_FEWEST_ENTRIES = 10_000

_TRANSPOSE = torch.ops.aten.transpose.int
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


def transpose_skinny_products(graph: GraphModule) -> GraphModule:
    r"""Replace :math:`AB` by :math:`(B^\top A^\top)^\top` where B has few columns, in place.

    The BLAS behind PyTorch on CPUs spends two to eight times as long on a row-major product with at most ten columns
    as on its transpose, and gradients of models with orthonormal matrices are such products: (n×n)(n×p).

    Args:
        graph: as `trace` returns it, with shapes in its nodes' metadata.

    Returns:
        The same graph module.
    """
    for node in list(graph.graph.nodes):
        if node.target in _PRODUCTS and _is_narrow(*(_value(argument) for argument in node.args)):
            left, right = node.args
            with graph.graph.inserting_before(node):
                transposed = [graph.graph.call_function(_TRANSPOSE, (x, -2, -1)) for x in (right, left)]
                product = graph.graph.call_function(node.target, tuple(transposed))
                back = graph.graph.call_function(_TRANSPOSE, (product, -2, -1))
                # Later views were traced for row-major order.
                ordered = graph.graph.call_function(
                    torch.ops.aten.clone.default, (back,), {"memory_format": torch.contiguous_format}
                )
            node.replace_all_uses_with(ordered)
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _is_narrow(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return False
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    return 1 <= columns <= _MOST_COLUMNS and 2 * columns <= inner and rows * inner >= _FEWEST_ENTRIES


def _value(argument: object) -> Tensor | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, Tensor) else None
