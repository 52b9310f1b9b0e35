"""Constant folding, removal of operators that change nothing, and common subexpression elimination.

Forward-mode tangents of constants are traced as tensors of zeros, with all the arithmetic on them. In a step that has
derivatives of derivatives, these are most of the nodes. And every derivative at one point recomputes the function.
These passes do not apply to graphs that write to tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from pyro_manifold.compiled.rewriting import ATEN, EXPAND, VIEW, Rules, add_constant, alike, constant, example, writes

_PRIMS = torch.ops.prims
_OF_A_SHAPE = {
    getattr(ATEN, name).default
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
} | {ATEN._new_zeros_with_same_feature_meta.default}  # of tangents
"""Functions that depend only on the shape of their input."""

_OF_STORAGE = {ATEN.as_strided.default, ATEN.as_strided_scatter.default}

_LARGEST_TO_COMPARE = 4096


def is_functional(module: GraphModule) -> bool:
    return not writes(module)


def is_of_values(module: GraphModule) -> bool:
    """Return whether a graph is functional, and no strided view in it reads memory outside its tensor."""
    return is_functional(module) and not any(node.target in _OF_STORAGE for node in module.graph.nodes)


def fold_constants(module: GraphModule) -> None:
    """Replace nodes that depend on no input by their values."""
    known = _known_values(module)
    for node, value in known.items():
        if node.op == "get_attr" or not isinstance(value, Tensor) or all(user in known for user in node.users):
            continue
        with module.graph.inserting_before(node):
            folded = add_constant(module, f"_folded_{node.name}", _kept(value.resolve_neg()))
        folded.meta = {"layout": node.meta["layout"]} if "layout" in node.meta else {}
        node.replace_all_uses_with(folded)


def _known_values(module: GraphModule) -> dict[Node, Any]:
    """Return the values, of one tensor or several, of the nodes that depend on no input."""
    known: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = getattr(module, str(node.target))
        elif node.op == "call_function" and _is_known(node, known):
            arguments, options = map_arg(
                (node.args, node.kwargs), lambda source: known[source] if source in known else _blank(source)
            )
            value = node.target(*arguments, **options)
        else:
            continue
        if isinstance(value, Tensor) and value._is_zerotensor():
            value = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        if isinstance(value, tuple | list) or (isinstance(value, Tensor) and not value.is_meta):
            known[node] = value
    return known


def _is_known(node: Node, known: dict[Node, Any]) -> bool:
    of_a_shape = node.target in _OF_A_SHAPE
    return all(source in known or (of_a_shape and "val" in source.meta) for source in node.all_input_nodes)


def _blank(node: Node) -> Tensor:
    """Return a tensor of the shape, strides, dtype and device of a node's value, with any entries."""
    value: Tensor = node.meta["val"]
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=node.meta["device"])


def _kept(value: Tensor) -> Tensor:
    """Return a copy that nothing else writes to; repeated entries, such as data for each chain, are stored once."""
    once = value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]
    return once.clone().expand(value.shape)


# ---- identity operations -------------------------------------------------------------------------------------------


_SUMS = (ATEN.add.Tensor, _PRIMS.add.default)
_NEUTRAL: dict[Any, int] = {
    **dict.fromkeys((*_SUMS, ATEN.sub.Tensor, _PRIMS.sub.default), 0),
    **dict.fromkeys((ATEN.mul.Scalar, ATEN.div.Scalar, ATEN.pow.Tensor_Scalar), 1),
}
"""Neutral elements, as the last argument of an operator."""


def _input(module: GraphModule, node: Node) -> Node | None:
    return _unless_it_differs(node, node.args[0])


def _argument_of_identity_operation(module: GraphModule, node: Node) -> Node | None:
    if node.kwargs or len(node.args) != 2:
        return None
    neutral: Any = _NEUTRAL[node.target]
    for source, other in (node.args, node.args[::-1]) if node.target in _SUMS else (node.args,):
        zeros = constant(module, other)
        if other == neutral if zeros is None else neutral == 0 and not zeros.any():
            return _unless_it_differs(node, source)
    return None


def _unless_it_differs(node: Node, source: Any) -> Node | None:
    value, result = example(source), example(node)
    if value is None or result is None or not alike(source, node) or value.stride() != result.stride():
        return None
    return source if source.meta.get("device") == node.meta.get("device") else None


IDENTITIES: Rules = dict.fromkeys((ATEN.alias.default, EXPAND, VIEW), _input)
"""Views that are their input."""

NEUTRAL_ELEMENTS: Rules = {
    ATEN._to_copy.default: _input,
    **dict.fromkeys(_NEUTRAL, _argument_of_identity_operation),
}
"""Arithmetic and conversions whose result equals an input, in other memory."""


# ---- common subexpressions -----------------------------------------------------------------------------------------


def share_common_subexpressions(module: GraphModule) -> None:
    """Replace each constant and call by the first that equals it; nothing in the graph is random."""
    firsts: dict[object, Node] = {}
    key: object
    for node in module.graph.nodes:
        if node.op == "get_attr":
            key = _identity(getattr(module, str(node.target)))
        elif node.op == "call_function":
            key = node.target, str(node.args), str(node.kwargs)  # nodes appear in them by their unique names
        else:
            continue
        first = firsts.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)


def _identity(value: object) -> object:
    """Return a key that is the same for equal constants; large ones, such as data, equal only themselves."""
    if not torch.is_tensor(value):
        return id(value)
    small = value.numel() <= _LARGEST_TO_COMPARE
    content = str(value.tolist()) if small else value.data_ptr()
    return value.dtype, value.device, value.shape, value.stride(), content
