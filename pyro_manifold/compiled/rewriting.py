"""Rewriting of graphs of tensor operators: what their nodes are, and rules that replace one node by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

ATEN = torch.ops.aten
EXPAND, VIEW = ATEN.expand.default, ATEN.view.default
RESHAPES = frozenset((VIEW, ATEN._unsafe_view.default, ATEN.unsqueeze.default))
SUMS = frozenset((ATEN.sum.default, ATEN.sum.dim_IntList))

Rule = Callable[[GraphModule, Node], Node | None]
"""Function from a graph and a node to the node that replaces it, added before it; None if there is none."""

Rules = Mapping[Any, Rule]
"""Rules by the operators to which they apply, or by a `torch.Tag` of these."""


def rewrite(module: GraphModule, rules: Rules) -> None:
    """Apply rules to the nodes of a graph once, in their order, in place; new nodes are left as they are."""
    of_operators: dict[int, Rule | None] = {}  # by address, since torch's operators take long to hash
    for node in list(module.graph.nodes):
        if id(node.target) not in of_operators:
            of_operators[id(node.target)] = _rule_for(node, rules)
        rule = of_operators[id(node.target)]
        if rule is not None:
            with module.graph.inserting_before(node):
                other = rule(module, node)
            if other is not None:
                node.replace_all_uses_with(other)
                module.graph.erase_node(node)


def _rule_for(node: Node, rules: Rules) -> Rule | None:
    if node.op != "call_function":
        return None
    tags = getattr(node.target, "tags", ())
    return rules.get(node.target) or next((rules[tag] for tag in tags if tag in rules), None)


def remove_dead_code(module: GraphModule) -> None:
    """Remove nodes without users, as `Graph.eliminate_dead_code`, which takes four times as long to find them."""
    for node in reversed(module.graph.nodes):
        if not node.users and not _has_effect(node):
            module.graph.erase_node(node)


def _has_effect(node: Node) -> bool:
    """Return whether a node without users is needed, such as the test of a factorisation, which returns nothing.

    Some versions of torch (2.6) take that test for dead code: without it a graph goes on where the model raises.
    """
    operator: Any = node.target
    schema = getattr(operator, "_schema", None)
    if node.op != "call_function" or schema is None or torch.Tag.nondeterministic_seeded in operator.tags:
        return bool(node.is_impure())
    return schema.is_mutable or not schema.returns


def call(
    graph: Graph,
    operator: Any,
    arguments: tuple[Any, ...],
    options: dict[str, Any] | None = None,
    value: Tensor | None = None,
) -> Node:
    """Add a call of an operator.

    Args:
        graph: the graph.
        operator: an operator.
        arguments: its arguments, with nodes in place of tensors.
        options: its keyword arguments.
        value: an example of its result; None if it is to be computed from the shapes of the arguments.
    """
    node = graph.call_function(operator, arguments, options)
    if value is None:
        shapes: Any = map_arg(arguments, lambda argument: without_storage(argument.meta["val"]))
        value = operator(*shapes, **node.kwargs)
    device = next((source.meta["device"] for source in node.all_input_nodes if "device" in source.meta), None)
    node.meta |= {"val": value} if device is None else {"val": value, "device": device}
    return node


def add_constant(module: GraphModule, name: str, value: Tensor) -> Node:
    """Add a constant with its value; it has the name of a buffer."""
    module.register_buffer(name, value)
    node = module.graph.get_attr(name)
    node.meta |= {"val": value, "device": value.device}
    return node


def constant(module: GraphModule, node: object) -> Tensor | None:
    """Return the tensor of a constant; None if the argument is something else."""
    value = getattr(module, str(node.target)) if isinstance(node, Node) and node.op == "get_attr" else None
    return value if isinstance(value, Tensor) and not value.is_meta else None


def example(node: object) -> Tensor | None:
    """Return an example of the value of a node, of which shape, strides and dtype count; None if there is none."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def shape(node: object) -> list[int] | None:
    value = example(node)
    return None if value is None else list(value.shape)


def alike(node: object, other: object) -> bool:
    """Return whether two nodes have the same shape, dtype and device, so that nothing is broadcast or converted."""
    values = [value for each in (node, other) if (value := example(each)) is not None]
    return len(values) == 2 and len({(value.shape, value.dtype, value.device) for value in values}) == 1


def is_elementwise(node: Node) -> bool:
    """Return whether each entry of the result is computed from the entries at its place."""
    return node.op == "call_function" and torch.Tag.pointwise in getattr(node.target, "tags", ())


def written_arguments(operator: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator changes in place."""
    schema = getattr(operator, "_schema", None)
    return [
        arguments[place] if place < len(arguments) else options.get(argument.name)
        for place, argument in enumerate(schema.arguments if schema is not None and schema.is_mutable else ())
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def writes(module: GraphModule) -> bool:
    """Return whether a graph changes something in place, so that equal calls need not give equal values."""
    return any(is_in_place(node) for node in module.graph.nodes)


def is_in_place(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def without_storage(value: Tensor) -> Tensor:
    """Return a tensor of the same shape, strides and dtype on the meta device, without entries."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
