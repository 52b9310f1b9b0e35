"""Tracer that records the operators called by a function, by torch's dispatch modes.

Only this module of the package uses private parts of torch; if these have changed, `tracing` uses `make_fx`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate, map_arg
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_manifold.compiled.masks import by_places, is_by_mask
from pyro_manifold.compiled.modules import LazyGraphModule
from pyro_manifold.compiled.refusals import BRANCHES_ON_A_VALUE
from pyro_manifold.compiled.rewriting import ATEN, without_storage, written_arguments


class Recorder(TorchDispatchMode):
    """Dispatch mode that records each operator, below automatic differentiation and the transforms of torch.func."""

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._decompositions = decompositions
        self._graph, self._constants = fx.Graph(), torch.nn.Module()
        self._nodes = WeakTensorKeyDictionary()
        self._known: set[fx.Node] = set()  # nodes that do not depend on the inputs
        self._written: dict[int, torch.UntypedStorage] = {}  # written to; kept, so that no address is reused

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing here is run under `torch.compile`; True would import it, which takes a second."""
        return False

    def begin(self, inputs: tuple[Tensor, ...]) -> None:
        for number, value in enumerate(inputs):
            self._note(value, self._graph.placeholder(f"input{number}"))

    def end(self, result: Any) -> fx.GraphModule:
        """Return the graph with this output."""
        self._graph.output(self._recorded(result))
        return LazyGraphModule(self._constants, self._graph)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is ATEN.lift_fresh.default:
            func = ATEN.lift_fresh_copy.default  # a constant that may be written to must be copied at each call
        traits = _traits(func)
        if traits.is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        if is_by_mask(func, args):
            return self._by_mask(func, args, kwargs)
        node_args, node_kwargs = self._recorded(args), self._recorded(kwargs)
        known = self._is_known((args, kwargs), func)
        if traits.writes and not known:
            self._forget(written_arguments(func, args, kwargs))
        if traits.has_dynamic_shape and not known:
            raise ValueError(_DYNAMIC_SHAPE.format(func))
        if traits.returns_value and not known:
            raise ValueError(f"{BRANCHES_ON_A_VALUE}, in {func}")
        if func in self._decompositions and not known:
            with self:
                return self._decompositions[func](*args, **kwargs)
        result = func(*args, **kwargs)
        node = self._graph.create_node("call_function", func, node_args, node_kwargs)
        if known:
            self._known.add(node)
        self._note_result(result, node)
        return result

    def copy_of(self, graph: fx.GraphModule, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Record the nodes of a graph as those that made its outputs from these inputs."""
        with _disable_current_modes():
            copies = dict(zip(graph.graph.find_nodes(op="placeholder"), map(self._recorded_part, inputs), strict=True))
            for node in graph.graph.nodes:
                if node.op == "get_attr":
                    copies[node] = self._constant(getattr(graph, str(node.target)))
                elif node.op == "call_function":
                    copies[node] = self._copied(node, copies)
            results: Any = graph.graph.output_node().args[0]
            for node, value in zip(results, outputs, strict=True):
                self._nodes[value] = copies[node]

    def _copied(self, node: fx.Node, copies: Mapping[fx.Node, Any]) -> Any:
        """Return the copy of a node, or what its operator is decomposed into; a tuple of nodes for several results."""
        if node.target is operator.getitem:
            source, place = cast("tuple[fx.Node, int]", node.args)
            if isinstance(copies[source], tuple | list):
                return copies[source][place]
        decomposition = self._decompositions.get(node.target)
        if decomposition is None or not node.all_input_nodes:
            return self._graph.node_copy(node, copies.__getitem__)

        def stand_in(source: fx.Node) -> Tensor:
            value = stand_in_for(source)
            self._nodes[value] = copies[source]
            return value

        args, kwargs = map_arg((node.args, node.kwargs), stand_in)
        with self:
            result = decomposition(*args, **kwargs)
        return map_aggregate(result, self._recorded_part)

    def _by_mask(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Replace a mask by the indices where it is true, if it is the same for all inputs."""
        masks = [value for value in args[1] if isinstance(value, Tensor)] if isinstance(args[1], list) else [args[1]]
        self._recorded(masks)
        if not self._is_known(masks):
            raise ValueError(_DYNAMIC_SHAPE.format(func))
        recorded = by_places(func, args, kwargs)
        with self:
            return recorded()

    def _is_known(self, values: Any, func: Any = None) -> bool:
        """Return whether these tensors, and the result of an operator on them, are the same for all inputs."""
        return not (func is not None and _traits(func).is_random) and all(
            self._nodes[value] in self._known and _address(value) not in self._written for value in _tensors_of(values)
        )

    def _forget(self, values: Any) -> None:
        """Mark these tensors, and all views of their storage, as dependent on inputs."""
        for value in _tensors_of(values):
            self._known.discard(self._nodes[value])
            if address := _address(value):
                self._written[address] = value.untyped_storage()

    def _note_result(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, tuple | list):
            for place, part in enumerate(result):
                item = self._graph.create_node("call_function", operator.getitem, (node, place))
                if node in self._known:
                    self._known.add(item)
                self._note_result(part, item)

    def _note(self, value: Tensor, node: fx.Node) -> None:
        self._nodes[value] = node
        node.meta["device"] = value.device
        if value.layout == torch.strided:
            node.meta["val"] = without_storage(value)
            node.meta["layout"] = value.stride(), value.storage_offset()

    def _recorded(self, value: Any) -> Any:
        """Return the value with a node for each tensor: a constant if it was not computed in the recording."""
        return map_aggregate(value, self._recorded_part)

    def _recorded_part(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            node = self._nodes.get(value)
            return self._constant(value) if node is None else node
        return self._generator(value) if isinstance(value, torch.Generator) else value

    def _constant(self, value: Tensor) -> fx.Node:
        if type(value) is not Tensor and not isinstance(value, torch.nn.Parameter):
            # Its class wraps results in tensors whose creation is not recorded.
            raise ValueError(f"tensors of the class {type(value).__name__} cannot be traced")
        name = f"_constant{len(self._constants._buffers)}"
        self._constants.register_buffer(name, value.detach() if value.requires_grad else value)
        node = self._graph.get_attr(name)
        self._known.add(node)
        self._note(value, node)
        return node

    def _generator(self, value: torch.Generator) -> fx.Node:
        name = f"_generator{len(self._graph.nodes)}"
        setattr(self._constants, name, value)
        return self._graph.create_node("get_attr", name)


def stand_in_for(node: fx.Node) -> Tensor:
    """Return a tensor like the value of a node: of ones, or of zeros if they are integers, which may be indices."""
    value = node.meta["val"]
    found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=node.meta["device"])
    return found.fill_(1 if value.is_floating_point() else 0)


def active_recorder() -> Recorder | None:
    """Return the recorder that records the next operator, if there is one."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Recorder) else None


def are_plain(values: Sequence[Tensor]) -> bool:
    """Return whether no transform of torch.func has wrapped any of these tensors."""
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(value) for value in values)


class _Traits(NamedTuple):
    """Properties of an operator: how it is called and what it writes.

    Attributes:
        is_composite: whether it only calls other operators.
        is_random: whether it draws random numbers.
        has_dynamic_shape: whether the shape of its result depends on entries of tensors.
        returns_value: whether its result is a Python number that depends on entries of tensors.
        writes: whether it changes a tensor in place.
    """

    is_composite: bool
    is_random: bool
    has_dynamic_shape: bool
    returns_value: bool
    writes: bool


@cache
def _traits(func: OpOverload[..., Any]) -> _Traits:
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return _Traits(
        composite,
        torch.Tag.nondeterministic_seeded in func.tags,
        torch.Tag.dynamic_output_shape in func.tags and func is not ATEN.index.Tensor,  # which has it by masks
        torch.Tag.data_dependent_output in func.tags,
        func._schema.is_mutable,
    )


_DYNAMIC_SHAPE = "the shape of a tensor depends on a latent value, as with a mask, in {}"


def _tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors_of(part)
    elif isinstance(value, dict):
        yield from _tensors_of(list(value.values()))


def _address(value: Tensor) -> int:
    """Return the memory address of the storage of a tensor; 0 if it has none."""
    try:
        return value.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a sparse tensor
        return 0
