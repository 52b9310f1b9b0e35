"""Computation before expansion: a function of few repeated entries is computed once and then expanded.

`Normal(mean, σ)` expands σ to the shape of its data, and the logarithm, the square and the derivative of σ are traced
as functions of all entries. Values stay the same, up to the order of summation.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_manifold.compiled.broadcasting import broadcast_shapes
from pyro_manifold.compiled.rewriting import (
    ATEN,
    EXPAND,
    RESHAPES,
    SUMS,
    Rules,
    add_constant,
    call,
    constant,
    is_elementwise,
    shape,
)


def _compute_first(module: GraphModule, node: Node) -> Node | None:
    """Replace f(expand(x), expand(y)) by expand(f(x, y)), if that has fewer entries."""
    sources = {argument: _once(module, argument) for argument in node.all_input_nodes}
    shapes = [list(x.shape) if isinstance(x, Tensor) else shape(x) for x in sources.values()]
    if not shapes or any(each is None for each in shapes) or shape(node) is None:
        return None
    result = node.meta["val"]
    few = list(broadcast_shapes(*[each for each in shapes if each is not None])) or [1]
    if prod(few) >= result.numel() or not all(_takes_expansion(user, node, few) for user in node.users):
        return None
    arguments: dict[Node, Any] = {argument: _small(module, argument, x) for argument, x in sources.items()}
    first = module.graph.node_copy(node, lambda argument: arguments[argument])
    first.meta = {**node.meta, "val": result.new_empty(few)}
    return call(module.graph, EXPAND, (first, shape(node)))


def _reshape_first(module: GraphModule, node: Node) -> Node | None:
    """Replace reshape(expand(x)) by expand(reshape(x)), if there is such a reshape."""
    inner: Any = node.args[0]
    source = _source(inner)
    before = shape(source)
    few = None if source is inner or before is None else _reshaped(node, inner, before)
    if few is None:
        return None
    return call(module.graph, EXPAND, (call(module.graph, ATEN.reshape.default, (source, few)), shape(node)))


BROADCAST_SINKING: Rules = {torch.Tag.pointwise: _compute_first} | dict.fromkeys(RESHAPES, _reshape_first)


def _once(module: GraphModule, node: Node) -> Tensor | Node:
    """Return what a node repeats; of a constant one entry, if all are equal, else what is stored in memory."""
    value = constant(module, node)
    if value is None:
        return _source(node)
    if "once" not in node.meta:
        same = value.numel() and bool((value == value[(0,) * value.dim()]).all())
        repeats = [same or (stride == 0 and value.numel()) for stride in value.stride()]
        node.meta["once"] = value[tuple(slice(1) if repeated else slice(None) for repeated in repeats)]
    once: Tensor = node.meta["once"]
    return once


def _source(node: Node) -> Node:
    """Return the node that a node repeats: the first in a sequence of expansions."""
    while node.target == EXPAND and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _small(module: GraphModule, argument: Node, source: Any) -> Node:
    """Return a node of an argument before its expansion; 0-dimensional only if the argument is: dtypes depend on it."""
    if isinstance(source, Tensor):
        return add_constant(module, f"{argument.target}_once", source)
    if source is argument or shape(source):
        return source
    return call(module.graph, ATEN.reshape.default, (source, [1]))


def _reshaped(node: Node, inner: Node, few: list[int]) -> list[int] | None:
    """Return the shape to which a reshape of an expansion takes the tensor that was expanded; None if there is none."""
    before, after = shape(inner), shape(node)
    if before is None or after is None:
        return None
    few = [1] * (len(before) - len(few)) + few
    if node.target == ATEN.unsqueeze.default:
        dimension: Any = node.args[1]
        few.insert(dimension % len(after), 1)
        return few
    if after == before:
        return few
    of_chains = bool(after) and after[0] == before[0] and prod(few[1:]) == 1
    return [few[0], *[1] * (len(after) - 1)] if of_chains else None


def _takes_expansion(user: Node, inner: Node, few: list[int]) -> bool:
    """Return whether a user accepts an expanded tensor in place of a contiguous one: not all views of it exist."""
    if user.target in RESHAPES:
        after = _reshaped(user, inner, few)
        return after is not None and all(_takes_expansion(following, user, after) for following in user.users)
    return (is_elementwise(user) and shape(user) is not None) or user.target in SUMS or user.target == EXPAND
