"""Reuse of values across the steps of a loop: values at the end of a step are inputs of the next one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from pyro_manifold.compiled.native.emit import Loop, operator_name
from pyro_manifold.compiled.native.operators import OF_STORAGE
from pyro_manifold.compiled.rewriting import remove_dead_code, writes

_VIEWS = {"view", "_unsafe_view", "reshape", "clone", "alias", "detach"}
_COSTLY = {"mm", "bmm", "mv", "dot", "linalg_solve_triangular"}


def reusing(loop: Loop) -> Loop:
    """Return a loop that carries values which a step computes at its end and the next one at its start.

    A leapfrog step ends with half a kick and the next begins with another, by the same force at the same position. A
    function of the state becomes part of the state if a step evaluates it both at the given state and at the one that
    it returns, and if it contains a product of matrices. The results of a loop do not change.
    """
    if writes(loop.step) or writes(loop.begin):
        return loop
    step = copy.deepcopy(loop.step)
    inputs, outputs = _placeholders(step), list(_output(step).args[0])  # type: ignore[arg-type]
    state = inputs[len(inputs) - loop.carried :]
    following = _following(step, dict(zip(state, outputs, strict=True)))
    kept = [node for node in following if _is_reused_product(node, following, set(state))]
    if not kept:
        return loop
    begin, end = copy.deepcopy(loop.begin), copy.deepcopy(loop.end)
    first = list(_output(begin).args[0])  # type: ignore[arg-type]
    known = dict(zip(inputs, [*_placeholders(begin), *first[: loop.carried]], strict=True))
    found = [_copied(node, begin, known) for node in kept]
    _set_output(begin, [*first[: loop.carried], *found, *first[loop.carried :]])
    for node in kept:
        _add_input(step, node)
        _add_input(end, node)
    given = _placeholders(step)[len(inputs) :]
    _set_output(step, [*outputs, *(following[node] for node in kept)])
    for node, value in zip(kept, given, strict=True):
        node.replace_all_uses_with(value)
    for module in (begin, step, end):
        remove_dead_code(module)
        module.recompile()
    return replace(loop, begin=begin, step=step, end=end, carried=loop.carried + len(kept))


def _following(step: GraphModule, ends: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return, for each node of a step that is also computed from the next state, the node that computes it."""
    same = _equal_nodes(step)
    known: dict[Any, Node] = {}
    for node in step.graph.nodes:
        if _is_a_tensor(node):
            known.setdefault(_key(node, same), node)
    following: dict[Node, Node] = {}
    for node in step.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            following[node] = same[ends.get(node, node)]
        elif same[node] is not node and same[node] in following:
            following[node] = following[same[node]]
        elif _is_a_tensor(node) and all(source in following for source in node.all_input_nodes):
            found = known.get(_key(node, following))
            if found is not None:
                following[node] = same[found]
    return {node: found for node, found in following.items() if node.op == "call_function"}


def _equal_nodes(module: GraphModule) -> dict[Node, Node]:
    """Return, for each node, the first node of the same value: before views in the same shape, or an equal constant."""
    same: dict[Node, Node] = {}
    constants: list[tuple[Tensor, Node]] = []
    for node in module.graph.nodes:
        same[node] = node
        if node.op == "get_attr":
            value = getattr(module, str(node.target))
            same[node] = next((other for x, other in constants if _equal(x, value)), node)
            constants.append((value, node))
        elif _is_a_tensor(node) and operator_name(node) in _VIEWS:
            source = node.args[0]
            if list(source.meta["val"].shape) == list(node.meta["val"].shape):
                same[node] = same[source]
    return same


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and bool(torch.equal(x, y))


def _is_a_tensor(node: Node) -> bool:
    """Return whether a node is a tensor that depends on the values of its arguments, not on their place in memory."""
    is_tensor = node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
    return is_tensor and operator_name(node) not in OF_STORAGE


def _key(node: Node, values: Mapping[Node, Node]) -> Any:
    """Return the operator and arguments of a node, with its arguments replaced, as a key."""
    arguments = map_arg((node.args, node.kwargs), lambda source: values.get(source, source))
    return node.target, repr(arguments)


def _is_reused_product(node: Node, following: Mapping[Node, Node], state: set[Node]) -> bool:
    """Return whether a node depends on a matrix product of the state, and a user of it not on the next state."""
    if all(user in following for user in node.users) or following[node] is node:
        return False
    sources = _sources(node)
    return bool(sources & state) and any(operator_name(source) in _COSTLY for source in sources)


def _sources(node: Node) -> set[Node]:
    """Return a node and all of its predecessors."""
    found, left = {node}, [node]
    while left:
        for source in left.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                left.append(source)
    return found


def _copied(node: Node, begin: GraphModule, known: dict[Node, Node]) -> Node:
    """Copy a node of a step, and all of its predecessors, to the end of a graph."""
    if node not in known:
        for source in node.all_input_nodes:
            _copied(source, begin, known)
        with begin.graph.inserting_before(_output(begin)):
            if node.op == "get_attr":
                name = f"step_{node.target}"
                setattr(begin, name, getattr(node.graph.owning_module, str(node.target)))
                known[node] = begin.graph.get_attr(name)
                known[node].meta |= node.meta
            else:
                known[node] = begin.graph.node_copy(node, lambda source: known[source])
    return known[node]


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _output(module: GraphModule) -> Node:
    return next(node for node in module.graph.nodes if node.op == "output")


def _set_output(module: GraphModule, values: list[Node]) -> None:
    _output(module).args = (values,)


def _add_input(module: GraphModule, like: Node) -> Node:
    """Add an input after the others."""
    last = _placeholders(module)[-1]
    with module.graph.inserting_after(last):
        node = module.graph.placeholder(f"kept_{like.name}")
    node.meta |= {key: like.meta[key] for key in ("val", "device", "layout") if key in like.meta}
    return node
