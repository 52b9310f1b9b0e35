"""Replacement of operators that torch cannot differentiate in forward mode."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from pyro_manifold.graphs.rewriting import ATEN, Rules, add_constant, call, example


def _logarithms(module: GraphModule, node: Node) -> Node:
    """Replace atanh x, for tracing the reverse derivative of its tangent ends the process (torch 2.13)."""
    graph = module.graph
    above = call(graph, ATEN.log1p.default, node.args)
    below = call(graph, ATEN.log1p.default, (call(graph, ATEN.neg.default, node.args),))
    return call(graph, ATEN.div.Scalar, (call(graph, ATEN.sub.Tensor, (above, below)), 2))


def _number_as_tensor(module: GraphModule, node: Node) -> Node | None:
    """Replace numbers in operations with a 0-dimensional tensor.

    The tangent of x + 1.0, x a single float32, has float64 (pytorch issue 90065), and factorisations refuse the result.
    """
    (source, number, *rest), value = node.args, example(node.args[0])
    if not isinstance(number, int | float) or value is None or value.dim() or not value.is_floating_point():
        return None
    tensor = torch.tensor(number, dtype=value.dtype, device=source.meta["device"])  # type: ignore[union-attr]
    argument = add_constant(module, f"_number_{node.name}", tensor)
    return call(module.graph, node.target, (source, argument, *rest), dict(node.kwargs), node.meta["val"])


FORWARD_DIFFERENTIABLE: Rules = {
    ATEN.atanh.default: _logarithms,
    **dict.fromkeys((ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor), _number_as_tensor),
}
