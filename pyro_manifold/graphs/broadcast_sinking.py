"""Computation before expansion: a function of few repeated entries is computed once and then expanded.

`Normal(mean, σ)` expands σ to the shape of its data, and the logarithm, the square and the derivative of σ are traced
as functions of all entries.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_EXPAND, _VIEW, _UNSQUEEZE = _ATEN.expand.default, _ATEN.view.default, _ATEN.unsqueeze.default
_SUMS = {_ATEN.sum.default, _ATEN.sum.dim_IntList}
_RESHAPES = {_VIEW, _ATEN._unsafe_view.default, _UNSQUEEZE}


def expand_late(module: GraphModule) -> None:
    """Rewrite a functional graph in place; its values stay the same, up to the order of summation.

    Args:
        module: as `trace` returns it, with shapes in its nodes' metadata; nothing in it writes to a tensor.
    """
    constants = {node: _once(getattr(module, str(node.target))) for node in module.graph.nodes if node.op == "get_attr"}
    for node in list(module.graph.nodes):
        if node.target in _RESHAPES:
            _reshape_first(module, node)
        elif _is_elementwise(node):
            _compute_first(module, node, constants)


def _once(value: object) -> object:
    """Return one entry of a constant if all are equal, else the entries that are stored in memory, without repeats."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    if bool((value == value[(0,) * value.dim()]).all()):
        return value[(slice(1),) * value.dim()]
    return value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]


def _compute_first(module: GraphModule, node: Node, constants: dict[Node, object]) -> None:
    """Replace f(expand(x), expand(y)) by expand(f(x, y)), if that has fewer entries."""
    sources = {argument: constants.get(argument, _source(argument)) for argument in node.all_input_nodes}
    shapes = [list(x.shape) if isinstance(x, Tensor) else _shape(x) for x in sources.values()]
    if not shapes or any(shape is None for shape in shapes):
        return
    result = node.meta["val"]
    few = list(torch.broadcast_shapes(*[tuple(shape) for shape in shapes if shape is not None])) or [1]
    if prod(few) >= result.numel() or not all(_takes_expansion(user, node, few) for user in node.users):
        return
    with module.graph.inserting_before(node):
        arguments: dict[Node, Any] = {argument: _small(module, argument, x) for argument, x in sources.items()}
        first = module.graph.node_copy(node, lambda argument: arguments[argument])
        first.meta = {**node.meta, "val": result.new_empty(few)}
        _replace_by_expansion(module, node, first)


def _small(module: GraphModule, argument: Node, source: Any) -> Node:
    """Return a node of an argument before its expansion; 0-dimensional only if the argument is: dtypes depend on it."""
    if isinstance(source, Tensor):
        name = f"{argument.target}_once"
        module.register_buffer(name, source)
        constant = module.graph.get_attr(name)
        constant.meta["val"] = source
        return constant
    if source is argument or _shape(source):
        return source
    row = module.graph.call_function(_ATEN.reshape.default, (source, [1]))
    row.meta["val"] = source.meta["val"].new_empty([1])
    return row


def _reshape_first(module: GraphModule, node: Node) -> None:
    """Replace reshape(expand(x)) by expand(reshape(x)), if there is such a reshape."""
    inner: Any = node.args[0]
    source, shape = _source(inner), _shape(_source(inner))
    few = None if source is inner or shape is None else _reshaped(node, inner, shape)
    if few is None:
        return
    with module.graph.inserting_before(node):
        first = module.graph.call_function(_ATEN.reshape.default, (source, few))
        first.meta = {**node.meta, "val": source.meta["val"].new_empty(few)}
        _replace_by_expansion(module, node, first)


def _replace_by_expansion(module: GraphModule, node: Node, first: Node) -> None:
    shape = list(node.meta["val"].shape)
    expanded = module.graph.call_function(_EXPAND, (first, shape))
    expanded.meta["val"] = first.meta["val"].expand(shape)
    node.replace_all_uses_with(expanded)
    module.graph.erase_node(node)


def _reshaped(node: Node, inner: Node, few: list[int]) -> list[int] | None:
    """Return the shape to which a reshape of an expansion takes the tensor that was expanded; None if there is none."""
    before, after = _shape(inner), _shape(node)
    if before is None or after is None:
        return None
    few = [1] * (len(before) - len(few)) + few
    if node.target == _UNSQUEEZE:
        dimension: Any = node.args[1]
        few.insert(dimension % len(after), 1)
        return few
    if after == before:
        return few
    of_chains = bool(after) and after[0] == before[0] and prod(few[1:]) == 1
    return [few[0], *[1] * (len(after) - 1)] if of_chains else None


def _takes_expansion(user: Node, inner: Node, few: list[int]) -> bool:
    """Return whether a user accepts an expanded tensor in place of a contiguous one: not all views of it exist."""
    if user.target in _RESHAPES:
        after = _reshaped(user, inner, few)
        return after is not None and all(_takes_expansion(following, user, after) for following in user.users)
    return _is_elementwise(user) or user.target in _SUMS or user.target == _EXPAND


def _source(node: Node) -> Node:
    """Return the node that a node repeats: the first in a sequence of expansions."""
    while node.target == _EXPAND and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _is_elementwise(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.pointwise in tags and _shape(node) is not None


def _shape(node: object) -> list[int] | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return list(value.shape) if isinstance(value, Tensor) else None
