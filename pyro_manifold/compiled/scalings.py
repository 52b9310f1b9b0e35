"""Fewer passes over memory: constant factors and terms are moved out of sums, and factors of factors are merged.

A normal log density is traced as five functions of all its entries and a sum of them, its gradient as four more. Of
these, a square and a sum remain, and for the gradient one function. Values stay the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from pyro_manifold.compiled.rewriting import ATEN, RESHAPES, SUMS, VIEW, Rules, alike, call, constant, example, shape


def _of_tensors_and_numbers(**functions: Callable[[float], Any]) -> dict[Any, Callable[[float], Any]]:
    kinds = ("Tensor", "Scalar")
    return {getattr(getattr(ATEN, name), kind): function for name, function in functions.items() for kind in kinds}


_AFFINE = {ATEN.neg.default: lambda number: (number, 0.0)} | _of_tensors_and_numbers(
    mul=lambda number: (number, 0.0),
    div=lambda number: (1 / number, 0.0) if number else None,
    add=lambda number: (1.0, number),
    sub=lambda number: (1.0, -number),
)
"""Factor and term by which an operator with a number, minus one for the negative, acts on its first argument."""

_AFFINE_OF_THE_RIGHT = _of_tensors_and_numbers(
    mul=lambda number: (number, 0.0), add=lambda number: (1.0, number), sub=lambda number: (-1.0, number)
)


class _Affine(NamedTuple):
    """factor · source + term, entrywise."""

    source: Node
    factor: float
    term: float = 0.0


def _take_out_of_sum(module: GraphModule, total: Node) -> Node | None:
    r"""Replace $\sum_i (a y_i + b)$ by $a \sum_i y_i + nb$, if nothing else uses the terms."""
    graph, value = module.graph, total.meta["val"]
    inside, views = total.all_input_nodes[0], []
    terms, sums = inside.meta["val"].numel(), value.numel()
    if terms == sums and not total.kwargs:
        return call(graph, VIEW, (inside, shape(total)), value=value)
    factor, term = 1.0, 0.0
    while len(inside.users) == 1:
        if inside.target in RESHAPES:
            views.append(inside)
            inside = inside.all_input_nodes[0]
            continue
        affine = _affine(module, inside)
        if affine is None or not affine.factor or (views and not affine.source.meta["val"].is_contiguous()):
            break
        inside, factor, term = affine.source, factor * affine.factor, factor * affine.term + term
    if (factor, term) == (1.0, 0.0):
        return None
    for view in reversed(views):
        inside = call(graph, view.target, (inside, *view.args[1:]), value=view.meta["val"])
    result = call(graph, total.target, (inside, *total.args[1:]), total.kwargs, value)
    result = call(graph, ATEN.mul.Scalar, (result, factor), value=value)
    return call(graph, ATEN.add.Scalar, (result, terms / sums * term), value=value) if term else result


def _join_factors(module: GraphModule, node: Node) -> Node | None:
    """Merge several multiplications by numbers, or one by a tensor of equal entries, into at most one by a number."""
    affine = _affine(module, node)
    if affine is None or affine.term:
        return None
    if affine.factor == 1:
        return affine.source
    inner = _affine(module, affine.source)
    if inner is not None and not inner.term:
        affine = _Affine(inner.source, affine.factor * inner.factor)
    elif node.target not in (ATEN.mul.Tensor, ATEN.div.Tensor):
        return None
    return call(module.graph, ATEN.mul.Scalar, affine[:2], value=node.meta["val"])


def _scale_while_adding(module: GraphModule, node: Node) -> Node | None:
    """Replace y ± c·x by one operator that computes it in one pass."""
    if node.kwargs or len(node.args) != 2:
        return None
    sides = [node.args, node.args[::-1]] if node.target == ATEN.add.Tensor else [node.args]
    for other, scaled in sides:
        if not (isinstance(scaled, Node) and alike(other, node) and len(scaled.users) == 1):
            continue
        affine = _affine(module, scaled)
        if affine is not None and not affine.term and alike(affine.source, node):
            options = {"alpha": affine.factor}
            return call(module.graph, node.target, (other, affine.source), options, node.meta["val"])
    return None


SUMS_OF_AFFINE_TERMS: Rules = dict.fromkeys(SUMS, _take_out_of_sum)
FACTORS_OF_FACTORS: Rules = dict.fromkeys(_AFFINE, _join_factors)
SCALED_SUMS: Rules = dict.fromkeys((ATEN.add.Tensor, ATEN.sub.Tensor), _scale_while_adding)


def _affine(module: GraphModule, node: Node) -> _Affine | None:
    """Return a node as an affine function of one other of the same shape, with finite coefficients; else None."""
    value = example(node)
    if node.target not in _AFFINE or value is None or not value.is_floating_point() or node.kwargs:
        return None
    left, right = node.args if len(node.args) == 2 else (node.args[0], -1.0)
    for source, argument, coefficients in ((left, right, _AFFINE), (right, left, _AFFINE_OF_THE_RIGHT)):
        number = _number(module, argument)
        found = None if number is None or node.target not in coefficients else coefficients[node.target](number)
        if found is not None and isinstance(source, Node) and alike(source, node):
            return _Affine(source, *found)
    return None


def _number(module: GraphModule, argument: Any) -> float | None:
    """Return the number that all entries of a constant equal, if it is finite."""
    if isinstance(argument, Node):
        value = constant(module, argument)
        if value is None or not value.is_floating_point() or not value.numel():
            return None
        first = value.flatten()[0]
        if not bool((value == first).all()):
            return None
        argument = float(first)
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        return None
    return float(argument) if abs(argument) < float("inf") else None
