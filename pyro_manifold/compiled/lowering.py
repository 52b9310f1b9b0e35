"""Replacement of operators for which the transforms of torch.func have no rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from pyro_manifold.compiled.modules import LazyGraphModule
from pyro_manifold.compiled.rewriting import ATEN, VIEW, Rules, add_constant, call, example

# ---- vectorisation -------------------------------------------------------------------------------------------------


def _copied(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return the result of copying one tensor into another, with the memory layout of the latter."""
    order, back = _order_in_memory(to)
    return source.to(to).expand(to.shape).permute(order).contiguous().permute(back)


def _put_strided(to: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    order, back = _order_in_memory(to)
    lying = to.permute(order)
    if not lying.is_contiguous():
        raise ValueError("a write through strides into a tensor that is not contiguous")
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
    """Replace a view by a reshape, since memory layouts differ with many chains, and nothing is written."""
    return call(module.graph, ATEN.reshape.default, node.args, value=node.meta["val"])


VECTORISABLE: Rules = {ATEN.slice_scatter.default: _count_from_the_start, VIEW: _reshape}


class _LogNormalCDF(torch.autograd.Function):
    """`torch.special.log_ndtr` of values, with the batching rule that torch lacks: elementwise, as of one tensor."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.special.log_ndtr(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing: the derivatives are nodes of the graph already."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
        return _log_ndtr(x), in_dims[0]


def _log_ndtr(x: Tensor) -> Tensor:
    result: Tensor = _LogNormalCDF.apply(x)
    return result


_BATCHING_RULES: dict[Any, Callable[..., Any]] = {ATEN.special_log_ndtr.default: _log_ndtr}
"""Operators for which `torch.vmap` loops over the batch and warns at each call, and functions that replace them."""


def vmapped(graph: GraphModule, in_dims: Any = 0) -> Callable[..., Any]:
    """Return `torch.vmap` of a graph, without a loop over the batch for operators of `_BATCHING_RULES`."""
    if any(node.target in _BATCHING_RULES for node in graph.graph.nodes):
        nodes = Graph()
        nodes.output(nodes.graph_copy(graph.graph, {}))
        for node in nodes.nodes:
            node.target = _BATCHING_RULES.get(node.target, node.target)
        graph = LazyGraphModule(graph, nodes)
    return without_fallback_warnings(torch.vmap(graph, in_dims=in_dims))


def without_fallback_warnings(vectorised: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function by `torch.vmap` that is silent about operators over which torch loops.

    These warnings are written by C++ at each call, to the error stream and not by Python's `warnings`.
    """

    def quiet(*args: Any) -> Any:
        functorch: Any = torch._C._functorch
        functorch._set_vmap_fallback_warning_enabled(False)
        try:
            return vectorised(*args)
        finally:
            functorch._set_vmap_fallback_warning_enabled(True)

    return quiet


# ---- differentiation in forward mode -------------------------------------------------------------------------------


def _logarithms(module: GraphModule, node: Node) -> Node:
    """Replace atanh x by logarithms: tracing the reverse derivative of its tangent crashes the process (torch 2.13)."""
    graph = module.graph
    above = call(graph, ATEN.log1p.default, node.args)
    below = call(graph, ATEN.log1p.default, (call(graph, ATEN.neg.default, node.args),))
    return call(graph, ATEN.div.Scalar, (call(graph, ATEN.sub.Tensor, (above, below)), 2))


def _log_ndtr_by_erfc(module: GraphModule, node: Node) -> Node:
    """Replace log Φ(x) by functions with batching rules, each where it and its derivative are finite.

    The formulas meet at -1. Their arguments are clamped beyond it: at the bound of a clamp the derivative is 1 or 0,
    depending on the version of torch (2.13, 2.15).
    """
    graph, (x,) = module.graph, node.args
    above, below = call(graph, ATEN.clamp_min.default, (x, -2.0)), call(graph, ATEN.clamp_max.default, (x, 0.0))
    half_tail = call(graph, ATEN.erfc.default, (call(graph, ATEN.mul.Scalar, (above, math.sqrt(0.5))),))
    near = call(graph, ATEN.log1p.default, (call(graph, ATEN.mul.Scalar, (half_tail, -0.5)),))
    scaled = call(graph, ATEN.special_erfcx.default, (call(graph, ATEN.mul.Scalar, (below, -math.sqrt(0.5))),))
    half_square = call(graph, ATEN.mul.Scalar, (call(graph, ATEN.mul.Tensor, (below, below)), 0.5))
    logarithm = call(graph, ATEN.log.default, (call(graph, ATEN.mul.Scalar, (scaled, 0.5)),))
    far = call(graph, ATEN.sub.Tensor, (logarithm, half_square))
    return call(graph, ATEN.where.self, (call(graph, ATEN.lt.Scalar, (x, -1.0)), far, near), value=node.meta["val"])


def _number_as_tensor(module: GraphModule, node: Node) -> Node | None:
    """Replace numbers in operations with a 0-dimensional tensor.

    The tangent of x + 1.0, x a 0-dimensional float32, is float64 (pytorch issue 90065), for which factorisations fail.
    """
    (source, number, *rest), value = node.args, example(node.args[0])
    if not isinstance(number, int | float) or value is None or value.dim() or not value.is_floating_point():
        return None
    tensor = torch.tensor(number, dtype=value.dtype, device=source.meta["device"])  # type: ignore[union-attr]
    argument = add_constant(module, f"_number_{node.name}", tensor)
    return call(module.graph, node.target, (source, argument, *rest), dict(node.kwargs), node.meta["val"])


FORWARD_DIFFERENTIABLE: Rules = {
    ATEN.atanh.default: _logarithms,
    ATEN.special_log_ndtr.default: _log_ndtr_by_erfc,
    **dict.fromkeys((ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.div.Tensor), _number_as_tensor),
}
