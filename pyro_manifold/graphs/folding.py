"""Smaller graphs: what differentiating forwards leaves behind in a traced step.

Forward-mode tangents of constants are traced as tensors of zeros, with all the arithmetic on them. In a step that has
derivatives of derivatives, these are most of the nodes. And every derivative at one point computes the function anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functional_call, functionalize

from pyro_manifold.graphs.expansions import expand_late
from pyro_manifold.graphs.scalings import simplify_scalings
from pyro_manifold.graphs.tracing import trace

_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_IDENTITIES = {_ATEN.alias.default, _ATEN.expand.default, _ATEN.view.default, _ATEN._to_copy.default}
_PRODUCTS = {_ATEN.mul.Tensor, _PRIMS.mul.default}
_SUMS = {_ATEN.add.Tensor, _PRIMS.add.default}
_QUOTIENTS = {_ATEN.div.Tensor, _PRIMS.div.default}

_DIFFERENCES = {_ATEN.sub.Tensor, _PRIMS.sub.default}
_BY_A_NUMBER = {_ATEN.mul.Scalar, _ATEN.div.Scalar, _ATEN.pow.Tensor_Scalar}
_OF_A_SHAPE = {
    getattr(_ATEN, name).default
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
} | {_ATEN._new_zeros_with_same_feature_meta.default}  # of tangents
"""Functions that look at the shape of their input only."""

_LARGEST_TO_COMPARE = 4096


class _Folder(fx.Interpreter):
    """Runs the graph once; notes the values that no input enters, and the nodes that equal one of their inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.constants: dict[fx.Node, Tensor] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self._known_together: set[fx.Node] = set()  # several values that no input enters

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
        if known or self._vanishes(n):
            self.constants[n] = _kept(result.resolve_neg())
            return result
        source = self._source(n)
        if source is not None and _alike(self.env[source], result):
            self.same[n] = source
        return result

    def _is_known(self, node: fx.Node) -> bool:
        return all(source in self.constants for source in node.all_input_nodes)

    def _is_zero(self, argument: object) -> bool:
        return isinstance(argument, fx.Node) and argument in self.constants and not self.constants[argument].any()

    def _vanishes(self, node: fx.Node) -> bool:
        """A product with a tangent that is zero is zero, whatever the input."""
        if node.target in _PRODUCTS:
            return any(self._is_zero(argument) for argument in node.args[:2])
        return node.target in _QUOTIENTS and self._is_zero(node.args[0])

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
    """A copy that nothing else writes to; what is repeated in it, as data are for each chain, stays one."""
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
    """Whether a node changes a tensor in place, so that equal names need not mean equal values."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def without_writing(module: fx.GraphModule, *example: Tensor, for_vmap: bool = False) -> fx.GraphModule:
    """The same graph with nothing changed in place but constants of the graph that it leaves changed.

    Constants are inputs meanwhile: a copy of one may be written to, and torch refuses that of what it does not know.

    Args:
        module: a traced graph.
        *example: its inputs.
        for_vmap: whether to do without what `torch.vmap` has no rule for.
    """
    constants = dict([*module.named_parameters(), *module.named_buffers()])

    def function(constants: dict[str, Tensor], *values: Tensor) -> Any:
        return functional_call(module, constants, values)

    functional = functionalize(function, remove="mutations")
    graph = trace(
        lambda *values: functional(constants, *values), *example, decompositions=_WITHOUT_RULES if for_vmap else None
    )
    if for_vmap:
        for node in graph.graph.nodes:
            if node.target is _ATEN.slice_scatter.default:
                _count_from_the_start(node)
        graph.recompile()
    return graph


def _copied(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What is in a tensor after another was copied into it."""
    return source.to(to).expand(to.shape)


def _put_strided(to: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    if not to.is_contiguous():
        raise ValueError("a write through strides into what is not contiguous")
    first = 0 if offset is None else offset - to.storage_offset()
    places = torch.arange(to.numel(), device=to.device).as_strided(size, stride, first)
    return to.reshape(-1).index_put([places], source).view(to.shape)


_WITHOUT_RULES: dict[Any, Callable[..., Any]] = {
    _ATEN.copy.default: _copied,
    _ATEN.fill.Tensor: _copied,
    _ATEN.as_strided_scatter.default: _put_strided,
}
"""What comes of writing in place and `torch.vmap` has no rule for."""


def _count_from_the_start(node: fx.Node) -> None:
    """Bounds of a slice as `torch.vmap` takes them: not from the end, nor beyond it."""
    arguments: list[Any] = list(node.args)
    arguments += [0, None, None, 1][len(arguments) - 2 :]
    arguments[3:5] = slice(*arguments[3:5]).indices(node.meta["val"].shape[arguments[2]])[:2]
    node.args = tuple(arguments)


def writes(module: fx.GraphModule) -> bool:
    """Whether something is changed in place."""
    return any(_writes(node) for node in module.graph.nodes)


def folded_graph(
    function: Callable[..., Any], *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """A function of tensors like the example as a graph, without the nodes that constants decide.

    Args:
        function: makes no random numbers.
        *example: inputs to trace with; their shapes are frozen in the graph.
        decompositions: operators to functions that stand for them.
    """
    # Behind a lambda, because the tracer would count the self of a method among the inputs.
    module = trace(lambda *values: function(*values), *example, decompositions=decompositions)
    module.graph.eliminate_dead_code()
    if decompositions is None or writes(module):
        module = without_writing(module, *example)  # so that no constant is written to later
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
            node.replace_all_uses_with(graph.get_attr(name))
    for node, source in folder.same.items():
        while source in folder.same:
            source = folder.same[source]
        node.replace_all_uses_with(source)
    for simplify in (_share_repeated_values, expand_late, simplify_scalings):
        simplify(module)
        graph.eliminate_dead_code()
    module.recompile()
    return module


def _share_repeated_values(module: fx.GraphModule) -> None:
    """Compute once what is the same function of the same values; nothing in the graph is random or written to."""
    firsts: dict[object, fx.Node] = {}
    key: object
    for node in module.graph.nodes:
        if node.op == "get_attr":
            key = _identity(getattr(module, str(node.target)))
        elif node.op == "call_function":
            key = node.target, str(node.args), str(node.kwargs)  # nodes in them stand by names that are unique
        else:
            continue
        first = firsts.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)


def _identity(value: object) -> object:
    """What is the same for equal constants; large ones, the data of the model, equal only themselves."""
    if not torch.is_tensor(value):
        return id(value)
    small = value.numel() <= _LARGEST_TO_COMPARE
    content = str(value.tolist()) if small else value.data_ptr()
    return value.dtype, value.device, value.shape, value.stride(), content
