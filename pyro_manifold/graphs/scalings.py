"""Fewer passes over memory: constant factors and terms are moved out of sums, and factors of factors are merged.

A normal log density is traced as five functions of all its entries and a sum of them, its gradient as four more. Of
these, a square and a sum remain, and for the gradient one function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_FACTORS = {_ATEN.mul.Tensor, _ATEN.mul.Scalar}
_DIVISORS = {_ATEN.div.Tensor, _ATEN.div.Scalar}
_TERMS = {_ATEN.add.Tensor: 1.0, _ATEN.add.Scalar: 1.0, _ATEN.sub.Tensor: -1.0, _ATEN.sub.Scalar: -1.0}
_VIEWS = {_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.unsqueeze.default}
_SUMS = {_ATEN.sum.default, _ATEN.sum.dim_IntList}


class _Affine(NamedTuple):
    """factor · source + term, entrywise."""

    source: Node
    factor: float
    term: float = 0.0


def simplify_scalings(module: GraphModule) -> None:
    """Rewrite a functional graph in place; its values stay the same up to rounding.

    Args:
        module: as `trace` returns it, with shapes in its nodes' metadata; nothing in it writes to a tensor.
    """
    for node in list(module.graph.nodes):
        if node.target in _SUMS:
            _take_out_of_sum(module, node)
    for node in list(module.graph.nodes):
        _join_factors(module, node)
    for node in list(module.graph.nodes):
        if node.target in (_ATEN.add.Tensor, _ATEN.sub.Tensor):
            _scale_while_adding(module, node)


def _take_out_of_sum(module: GraphModule, total: Node) -> None:
    r"""Replace :math:`\sum_i (a y_i + b)` by :math:`a \sum_i y_i + nb`, if nothing else uses the terms."""
    inside, views = total.all_input_nodes[0], []
    terms, sums = inside.meta["val"].numel(), total.meta["val"].numel()
    graph = module.graph
    if terms == sums and not total.kwargs:
        shape = list(total.meta["val"].shape)
        _replace(graph, total, partial(_call, graph, _ATEN.view.default, (inside, shape), like=total))
        return
    factor, term = 1.0, 0.0
    while len(inside.users) == 1:
        if inside.target in _VIEWS:
            views.append(inside)
            inside = inside.all_input_nodes[0]
            continue
        affine = _affine(module, inside)
        if affine is None or not affine.factor or (views and not affine.source.meta["val"].is_contiguous()):
            break
        inside, factor, term = affine.source, factor * affine.factor, factor * affine.term + term
    if (factor, term) == (1.0, 0.0):
        return

    def outside() -> Node:
        summed = inside
        for view in reversed(views):
            summed = _call(graph, view.target, (summed, *view.args[1:]), like=view)
        result = _call(graph, total.target, (summed, *total.args[1:]), like=total, **total.kwargs)
        result = _call(graph, _ATEN.mul.Scalar, (result, factor), like=total)
        return _call(graph, _ATEN.add.Scalar, (result, terms / sums * term), like=total) if term else result

    _replace(graph, total, outside)


def _join_factors(module: GraphModule, node: Node) -> None:
    """Merge several multiplications by numbers, or one by a tensor of equal entries, into at most one by a number."""
    affine = _affine(module, node)
    if affine is None or affine.term:
        return
    if affine.factor == 1:
        node.replace_all_uses_with(affine.source)
        module.graph.erase_node(node)
        return
    inner = _affine(module, affine.source)
    if inner is not None and not inner.term:
        affine = _Affine(inner.source, affine.factor * inner.factor)
    elif node.target not in (_ATEN.mul.Tensor, _ATEN.div.Tensor):
        return
    _replace(module.graph, node, partial(_call, module.graph, _ATEN.mul.Scalar, affine[:2], like=node))


def _scale_while_adding(module: GraphModule, node: Node) -> None:
    """Replace y ± c·x by one operator that computes it in one pass."""
    if node.kwargs or len(node.args) != 2:
        return
    sides = [node.args, node.args[::-1]] if node.target == _ATEN.add.Tensor else [node.args]
    for other, scaled in sides:
        if not (isinstance(scaled, Node) and isinstance(other, Node) and len(scaled.users) == 1):
            continue
        affine = _affine(module, scaled)
        if affine is None or affine.term or not _alike(other, node) or not _alike(affine.source, node):
            continue
        both = other, affine.source
        build = partial(_call, module.graph, node.target, both, like=node, alpha=affine.factor)
        _replace(module.graph, node, build)
        return


def _affine(module: GraphModule, node: Node) -> _Affine | None:
    """Return a node as an affine function of one other of the same shape, with finite coefficients; else None."""
    if node.op != "call_function" or not _is_real(node):
        return None
    if node.target == _ATEN.neg.default:
        return _of(node, node.args[0], -1.0)
    if len(node.args) != 2 or node.kwargs:
        return None
    (left, right), of_right = node.args, _number(module, node.args[1])
    if of_right is not None:
        if node.target in _FACTORS:
            return _of(node, left, of_right)
        if node.target in _DIVISORS and of_right:
            return _of(node, left, 1 / of_right)
        if node.target in _TERMS:
            return _of(node, left, 1.0, _TERMS[node.target] * of_right)
        return None
    of_left = _number(module, left)
    if of_left is not None:
        if node.target in _FACTORS:
            return _of(node, right, of_left)
        if node.target in _TERMS:
            return _of(node, right, _TERMS[node.target], of_left)
    return None


def _of(node: Node, source: object, factor: float, term: float = 0.0) -> _Affine | None:
    if isinstance(source, Node) and _alike(source, node):
        return _Affine(source, factor, term)
    return None


def _number(module: GraphModule, argument: object) -> float | None:
    """Return the number that all entries of a constant equal, if it is finite."""
    if isinstance(argument, Node):
        if argument.op != "get_attr":
            return None
        value = getattr(module, str(argument.target))
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return None
        first = value.flatten()[0]
        if not bool((value == first).all()):
            return None
        argument = float(first)
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        return None
    return float(argument) if abs(argument) < float("inf") else None


def _is_real(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _alike(source: Node, node: Node) -> bool:
    """Return whether two nodes have the same shape, dtype and device, so that nothing is broadcast or converted."""
    value, result = source.meta.get("val"), node.meta.get("val")
    return (
        isinstance(value, Tensor)
        and isinstance(result, Tensor)
        and (value.shape, value.dtype, value.device) == (result.shape, result.dtype, result.device)
    )


def _replace(graph: Graph, node: Node, build: Callable[[], Node]) -> None:
    with graph.inserting_before(node):
        node.replace_all_uses_with(build())
    graph.erase_node(node)


def _call(graph: Graph, target: Any, arguments: tuple[Any, ...], *, like: Node, **keywords: Any) -> Node:
    """Add a node with the example value of another of the same shape."""
    node = graph.call_function(target, arguments, keywords)
    node.meta["val"] = like.meta.get("val")
    return node
