"""Comparison of the operations of two graphs."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg


def first_other_operation(graph: fx.GraphModule, other: fx.GraphModule) -> str | None:
    """Describe the first difference of two traces of one function, such as "exp, and log there"; None if equal.

    Operators, their operands, numbers and constants are compared. Two traces of a function that does not branch on its
    inputs are the same at all inputs.
    """
    places: dict[fx.Node, int] = {}
    others: dict[fx.Node, int] = {}
    for number, (left, right) in enumerate(zip_longest(graph.graph.nodes, other.graph.nodes)):
        if left is not None:
            places[left] = number
        if right is not None:
            others[right] = number
        if left is None or right is None or _name(left) != _name(right):
            return f"{_name(left)}, and {_name(right)} there"
        if left.op == "get_attr":
            if not _same_constant(getattr(graph, str(left.target)), getattr(other, str(right.target))):
                return "a constant, and another there"
        elif _in_places(left, places) != _in_places(right, others):
            return f"{_name(left)}, and that of other numbers there"
    return None


def _name(node: fx.Node | None) -> str:
    if node is None:
        return "no further operation"
    if node.op == "output":
        return "its result"
    return node.op if node.op != "call_function" else str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _same_constant(left: Any, right: Any) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return type(left) is type(right)
    if left is right:
        return True
    alike = left.shape == right.shape and left.dtype == right.dtype
    return alike and (torch.equal(left, right) or bool(((left == right) | (left != left) & (right != right)).all()))


def _in_places(node: fx.Node, places: dict[fx.Node, int]) -> str:
    """Return the arguments of a node as a string, with nodes replaced by their positions."""
    return str(map_arg((node.args, sorted(node.kwargs.items())), lambda source: f"%{places[source]}"))
