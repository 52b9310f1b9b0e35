"""Replacement of strided views by index operators, because `torch.vmap` changes the memory layout of many chains."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

_ATEN = torch.ops.aten


def pick_by_index(module: fx.GraphModule) -> fx.GraphModule:
    """Replace strided views by the same elements of the tensor that owns their storage, in place.

    Views are kept if they are written to, or are views of a tensor that is written to later: a copy would not see it.

    Args:
        module: as `trace` returns it, with layouts in its nodes' metadata.
    """
    written, found = _last_writes(module.graph), {}
    for number, node in enumerate(module.graph.nodes):
        if node.target is _ATEN.as_strided.default and written.get(owner(node), -1) < number:
            places = _places(owner(node), node)
            if places is not None:
                found[node] = owner(node), places
    for number, (node, (source, places)) in enumerate(found.items()):
        _replace(module, node, source, places, f"_places{number}")
    module.recompile()
    return module


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
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema is not None and schema.is_mutable else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
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


def _replace(module: fx.GraphModule, node: fx.Node, source: fx.Node, places: Tensor, name: str) -> None:
    device = node.meta["device"]
    module.register_buffer(name, places.to(device))
    with module.graph.inserting_before(node):
        index = module.graph.get_attr(name)
        index.meta = {"val": places.to("meta"), "device": device, "layout": (places.stride(), 0)}
        row = module.graph.call_function(_ATEN.reshape.default, (source, [-1]))
        value = source.meta["val"].new_empty(source.meta["val"].numel())
        row.meta = {"val": value, "device": device}
        picked = module.graph.call_function(_ATEN.index.Tensor, (row, [index]))
        picked.meta = {**node.meta, "layout": (torch.empty(places.shape, device="meta").stride(), 0)}
        picked.meta["val"] = value.new_empty(places.shape)
    node.replace_all_uses_with(picked)
    module.graph.erase_node(node)
