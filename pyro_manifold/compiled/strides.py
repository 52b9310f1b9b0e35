"""Replacement of strided views by index operators, because `torch.vmap` changes the memory layout of many chains."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from pyro_manifold.compiled.rewriting import ATEN, add_constant, call, rewrite, written_arguments


def pick_by_index(module: fx.GraphModule) -> None:
    """Replace strided views by the same elements of the tensor that owns their storage.

    Views are kept if they are written to, or are views of a tensor that is written to later: a copy would not see it.

    Args:
        module: as `trace` returns it, with layouts in its nodes' metadata.
    """
    written, found = _last_writes(module.graph), {}
    for number, node in enumerate(module.graph.nodes):
        if node.target is ATEN.as_strided.default and written.get(owner(node), -1) < number:
            found[node] = owner(node), _places(owner(node), node)

    def picked(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        source, places = found.get(node, (None, None))
        if source is None or places is None:
            return None
        index = add_constant(module, f"_places_{node.name}", places.to(node.meta["device"]))
        row = call(module.graph, ATEN.reshape.default, (source, [-1]))
        return call(module.graph, ATEN.index.Tensor, (row, [index]))

    rewrite(module, {ATEN.as_strided.default: picked})


def owner(node: Any) -> Any:
    """Return the node whose storage this one is a view of; itself if it is none."""
    while node.op == "call_function":
        source = node.args[0] if node.target is operator.getitem else node
        schema = getattr(source.target, "_schema", None)
        if schema is None or not schema.arguments or schema.arguments[0].alias_info is None:
            break
        node = source.args[0]
    return node


def _last_writes(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return the index of the last node that changes something in the storage of each owner."""
    written: dict[fx.Node, int] = {}
    for number, node in enumerate(graph.nodes):
        for given in written_arguments(node.target, node.args, node.kwargs):
            parts = given if isinstance(given, list | tuple) else [given]
            written |= {owner(part): number for part in parts if isinstance(part, fx.Node)}
    return written


def _places(storage: fx.Node, node: fx.Node) -> Tensor | None:
    """Return the row-major indices of the elements of a strided view in its owner; None if they are not in it."""
    if "layout" not in storage.meta or "layout" not in node.meta or "val" not in storage.meta:
        return None
    (strides, begin), shape = storage.meta["layout"], storage.meta["val"].shape
    (steps, first), size = node.meta["layout"], node.meta["val"].shape
    if not storage.meta["val"].numel() or not node.meta["val"].numel():
        return None
    length = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    last = first - begin + sum((n - 1) * step for n, step in zip(size, steps, strict=True))
    if not 0 <= first - begin <= last < length:
        return None
    number_of = torch.full((length,), -1)
    number_of[torch.arange(length).as_strided(shape, strides).flatten()] = torch.arange(storage.meta["val"].numel())
    places = number_of[torch.arange(length).as_strided(size, steps, first - begin)]
    return None if bool((places < 0).any()) else places
