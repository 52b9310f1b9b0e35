"""Constant folding and common subexpression elimination in traced graphs.

Forward-mode tangents of constants are traced as tensors of zeros, with all the arithmetic on them. In a step that has
derivatives of derivatives, these are most of the nodes. And every derivative at one point recomputes the function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functional_call, functionalize

from pyro_manifold.graphs.broadcast_sinking import expand_late
from pyro_manifold.graphs.scalings import simplify_scalings
from pyro_manifold.graphs.tracing import trace

_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_IDENTITIES = {_ATEN.alias.default, _ATEN.expand.default, _ATEN.view.default, _ATEN._to_copy.default}
_SUMS = {_ATEN.add.Tensor, _PRIMS.add.default}
_DIFFERENCES = {_ATEN.sub.Tensor, _PRIMS.sub.default}
_BY_A_NUMBER = {_ATEN.mul.Scalar, _ATEN.div.Scalar, _ATEN.pow.Tensor_Scalar}
_OF_A_SHAPE = {
    getattr(_ATEN, name).default
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
} | {_ATEN._new_zeros_with_same_feature_meta.default}  # of tangents
"""Functions that depend only on the shape of their input."""

_OF_STORAGE = {_ATEN.as_strided.default, _ATEN.as_strided_scatter.default}

_LARGEST_TO_COMPARE = 4096


class _Folder(fx.Interpreter):
    """Interpreter that finds the values that depend on no input, and the nodes that equal one of their inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.constants: dict[fx.Node, Tensor] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self._known_together: set[fx.Node] = set()  # nodes with several values that depend on no input
        self.storage_matters = any(node.target in _OF_STORAGE for node in module.graph.nodes)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if torch.is_tensor(result) and result._is_zerotensor():
            result = torch.zeros(result.shape, dtype=result.dtype, device=result.device)
        if (
            not torch.is_tensor(result)
            or result.is_meta
            or n.op not in ("get_attr", "call_function")
            or (n.target is operator.getitem and n.args[0] not in self._known_together)
        ):
            if isinstance(result, tuple | list) and n.op == "call_function" and self._is_known(n):
                self._known_together.add(n)
            return result
        known = self._is_known(n) or n.target in _OF_A_SHAPE or n.target is operator.getitem
        if known:
            self.constants[n] = _kept(result.resolve_neg())
            return result
        source = self._source(n)
        if source is not None and _alike(self.env[source], result) and self._may_replace(self.env[source], result):
            self.same[n] = source
        return result

    def _may_replace(self, source: Tensor, result: Tensor) -> bool:
        """Return whether no strided view can read memory beside the source that a copy of it does not have."""
        return not self.storage_matters or source.data_ptr() == result.data_ptr()

    def _is_known(self, node: fx.Node) -> bool:
        return all(source in self.constants for source in node.all_input_nodes)

    def _is_zero(self, argument: object) -> bool:
        return isinstance(argument, fx.Node) and argument in self.constants and not self.constants[argument].any()

    def _source(self, node: fx.Node) -> fx.Node | None:
        if node.target in _IDENTITIES and isinstance(node.args[0], fx.Node):
            return node.args[0]
        if node.target in _BY_A_NUMBER and node.args[1] == 1 and isinstance(node.args[0], fx.Node):
            return node.args[0]
        if node.target in _DIFFERENCES and self._is_zero(node.args[1]) and isinstance(node.args[0], fx.Node):
            return node.args[0]
        if node.target in _SUMS and len(node.args) == 2 and not node.kwargs:
            for argument, other in (node.args, node.args[::-1]):
                if self._is_zero(other) and isinstance(argument, fx.Node):
                    return argument
        return None


def _kept(value: Tensor) -> Tensor:
    """Return a copy that nothing else writes to; repeated entries, such as data for each chain, are stored once."""
    once = value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]
    return once.clone().expand(value.shape)


def _alike(found: object, expected: Tensor) -> bool:
    return (
        torch.is_tensor(found)
        and found.shape == expected.shape
        and found.dtype == expected.dtype
        and found.stride() == expected.stride()
    )


def _writes(node: fx.Node) -> bool:
    """Return whether a node changes a tensor in place, so that equal names need not mean equal values."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def functionalised(
    module: fx.GraphModule,
    *example: Tensor,
    for_vmap: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> fx.GraphModule:
    """Return the functionalised graph: only constants that the graph leaves changed are still changed in place.

    Constants are made inputs meanwhile: a copy of one may be written to, and torch refuses that for unknown tensors.

    Args:
        module: a traced graph.
        *example: its inputs.
        for_vmap: whether to replace operators for which `torch.vmap` has no rule.
        decompositions: operators and functions that replace them, also if they result from functionalisation.
    """
    module = _writing_by_copies(module)
    constants = dict([*module.named_parameters(), *module.named_buffers()])

    def function(constants: dict[str, Tensor], *values: Tensor) -> Any:
        return functional_call(module, constants, values)

    functional = functionalize(function, remove="mutations")
    others = _WITHOUT_RULES if for_vmap else decompositions
    graph = trace(lambda *values: functional(constants, *values), *example, decompositions=others)
    if for_vmap:
        for node in graph.graph.nodes:
            if node.target is _ATEN.slice_scatter.default:
                _count_from_the_start(node)
            elif node.target is _ATEN.view.default:
                node.target = _ATEN.reshape.default  # memory layouts differ with many chains, and nothing is written
        graph.recompile()
    return graph


def _writing_by_copies(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph in which elementwise in-place operators are replaced by a copy of new values.

    To functionalise another in-place operator, torch infers its shape, and for that imports its compiler, which takes a
    second.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if (compute := _without_result_in_place(node)) is not None:
            with graph.inserting_before(node):
                changed = graph.call_function(compute, node.args, node.kwargs)
            node.target, node.args, node.kwargs = _ATEN.copy_.default, (node.args[0], changed), {}
    return fx.GraphModule(module, graph)


def _without_result_in_place(node: fx.Node) -> Callable[..., Any] | None:
    """Return the out-of-place operator of an elementwise in-place operator; None if there is none."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if not _writes(node) or torch.Tag.pointwise not in node.target.tags or not name.endswith("_"):  # type: ignore[union-attr]
        return None
    packet = getattr(_ATEN, name[:-1], None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    # By their arguments, since overloads need not have the same name: pow_.Scalar is pow.Tensor_Scalar.
    return next((overload for overload in overloads if _arguments(overload) == _arguments(node.target)), None)


def _arguments(operator: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


def _copied(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return the result of copying one tensor into another, with the memory layout of the latter."""
    order, back = _order_in_memory(to)
    return source.to(to).expand(to.shape).permute(order).contiguous().permute(back)


def _put_strided(to: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    order, back = _order_in_memory(to)
    lying = to.permute(order)
    if not lying.is_contiguous():
        raise ValueError("a write through strides into what is not contiguous")
    first = 0 if offset is None else offset - to.storage_offset()
    places = torch.arange(to.numel(), device=to.device).as_strided(size, stride, first)
    return lying.reshape(-1).index_put([places], source).view(lying.shape).permute(back)


def _order_in_memory(x: Tensor) -> tuple[list[int], list[int]]:
    """Return the dimensions in the order of decreasing strides, and the inverse permutation."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return order, [order.index(d) for d in range(x.dim())]


_WITHOUT_RULES: dict[Any, Callable[..., Any]] = {
    _ATEN.copy.default: _copied,
    _ATEN.fill.Tensor: _copied,
    _ATEN.as_strided_scatter.default: _put_strided,
}
"""Results of functionalisation for which `torch.vmap` has no rule."""


def _count_from_the_start(node: fx.Node) -> None:
    """Normalise the bounds of a slice for `torch.vmap`: not counted from the end, nor beyond it."""
    arguments: list[Any] = list(node.args)
    arguments += [0, None, None, 1][len(arguments) - 2 :]
    arguments[3:5] = slice(*arguments[3:5]).indices(node.meta["val"].shape[arguments[2]])[:2]
    node.args = tuple(arguments)


def writes(module: fx.GraphModule) -> bool:
    """Return whether a graph changes something in place."""
    return any(_writes(node) for node in module.graph.nodes)


def folded_graph(
    function: Callable[..., Any], *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """Trace a function to a graph, with constant folding and common subexpression elimination.

    Args:
        function: a function without random numbers.
        *example: inputs to trace with; their shapes are frozen in the graph.
        decompositions: operators and functions that replace them.
    """
    # A lambda, because the tracer would count the self of a method among the inputs.
    module = trace(lambda *values: function(*values), *example, decompositions=decompositions)
    module.graph.eliminate_dead_code()
    if decompositions is None or writes(module):
        # So that no constant is written to later.
        module = functionalised(module, *example, decompositions=decompositions)
        module.graph.eliminate_dead_code()
    if writes(module):
        return module
    folder = _Folder(module)
    folder.run(*example)
    graph = module.graph
    for index, (node, value) in enumerate(folder.constants.items()):
        if node.op == "get_attr" or all(user in folder.constants for user in node.users):
            continue
        name = f"_folded{index}"
        module.register_buffer(name, value)
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        if "layout" in node.meta:
            constant.meta["layout"] = node.meta["layout"]
        node.replace_all_uses_with(constant)
    for node, source in folder.same.items():
        while source in folder.same:
            source = folder.same[source]
        node.replace_all_uses_with(source)
    rewritten = () if folder.storage_matters else (expand_late, simplify_scalings)
    for simplify in (_share_repeated_values, *rewritten):
        simplify(module)
        graph.eliminate_dead_code()
    module.recompile()
    return module


def _share_repeated_values(module: fx.GraphModule) -> None:
    """Eliminate common subexpressions; nothing in the graph is random or written to."""
    firsts: dict[object, fx.Node] = {}
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
