"""Matrix products in the layouts that are fast on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from pyro_manifold.compiled.rewriting import ATEN, VIEW, Rules, call, constant, example

_FEWEST_OPERATIONS = 1_000_000  # below that, the overhead of each function call exceeds the gain
_MOST_COLUMNS = 10
_FEWEST_ENTRIES = 10_000


def _joined_chains(module: GraphModule, node: Node) -> Node | None:
    r"""Replace $(A_1 S, \dots, A_c S)$ by one product with S, and $S A_k$ by its transpose.

    Data, or a minibatch of them, are the same for all chains, and products with them are the larger part of the
    arithmetic of a model. One product, with the rows of all chains concatenated, is faster on CPUs than one for each
    chain, and S is not copied.
    """
    graph, (left, right) = module.graph, node.args
    values = _factor(module, left), _factor(module, right)
    if values[0] is None or values[1] is None or values[0].numel() * values[1].shape[-1] < _FEWEST_OPERATIONS:
        return None
    if _is_shared(values[1]):
        return _joined(graph, left, _one_of(graph, right))
    if _is_shared(values[0]):
        turned = call(graph, ATEN.transpose.int, (_one_of(graph, left), 0, 1))
        return _turned(graph, _joined(graph, call(graph, ATEN.transpose.int, (right, 1, 2)), turned))
    return None


def _turned_round(module: GraphModule, node: Node) -> Node | None:
    r"""Replace $AB$ by $(B^\top A^\top)^\top$ where B has few columns.

    The BLAS behind PyTorch on CPUs spends two to eight times as long on a row-major product with at most ten columns
    as on its transpose, and gradients of models with orthonormal matrices are such products: (n×n)(n×p).
    """
    left, right = (example(argument) for argument in node.args)
    if left is None or right is None:
        return None
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if not (1 <= columns <= _MOST_COLUMNS and 2 * columns <= inner and rows * inner >= _FEWEST_ENTRIES):
        return None
    transposed = [call(module.graph, ATEN.transpose.int, (x, -2, -1)) for x in reversed(node.args)]
    return _turned(module.graph, call(module.graph, node.target, tuple(transposed)))


PRODUCTS_OF_ALL_CHAINS: Rules = {ATEN.bmm.default: _joined_chains}
SKINNY_PRODUCTS: Rules = dict.fromkeys((ATEN.mm.default, ATEN.bmm.default), _turned_round)


def _joined(graph: Graph, batched: Any, shared: Node) -> Node:
    """Multiply matrices ``(c, m, k)`` by one ``(k, n)``, to ``(c, m, n)``."""
    chains, rows, inner = batched.meta["val"].shape
    below = call(graph, ATEN.reshape.default, (batched, [chains * rows, inner]))
    product = call(graph, ATEN.mm.default, (below, shared))
    return call(graph, VIEW, (product, [chains, rows, shared.meta["val"].shape[1]]))


def _turned(graph: Graph, product: Node) -> Node:
    """Transpose a product, in row-major order, for which later views were traced."""
    back = call(graph, ATEN.transpose.int, (product, -2, -1))
    return call(graph, ATEN.clone.default, (back,), {"memory_format": torch.contiguous_format})


def _one_of(graph: Graph, argument: Any) -> Node:
    return call(graph, ATEN.select.int, (argument, 0, 0))


def _factor(module: GraphModule, argument: Any) -> Tensor | None:
    value = constant(module, argument)
    if value is None:
        return example(argument)
    argument.meta.setdefault("val", value)
    return value


def _is_shared(value: Tensor) -> bool:
    return value.stride(0) == 0 and len(value) > 1
