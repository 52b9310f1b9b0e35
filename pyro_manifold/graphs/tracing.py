"""Functions of tensors as graphs of tensor operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_ATEN = torch.ops.aten


def trace(
    function: Callable[..., Any], *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """The graph of a function, as torch's `make_fx` gives it, in a third of its time.

    A node has a tensor without storage, of its value's shape, strides and dtype, in ``meta["val"]``, and its device in
    ``meta["device"]``. Nothing here imports what `torch.compile` needs, which takes longer than many a whole run.

    Args:
        function: of tensors, to tensors in tuples, lists and dictionaries.
        *example: inputs to trace with, each a tensor of its own; their shapes are frozen in the graph.
        decompositions: operators to functions that stand for them, in terms of others.

    Raises:
        ValueError: if the function asks for a number that depends on its inputs, as a branch on values does.
    """
    recorder = _Recorder(decompositions or {})
    recorder.begin(example)
    with _PlainProducts(), recorder:
        result = function(*example)
    return recorder.end(result)


class _Recorder(TorchDispatchMode):
    """Notes each operator that torch calls, below automatic differentiation and the transformations of torch.func."""

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._decompositions = decompositions
        self._graph, self._constants = fx.Graph(), torch.nn.Module()
        self._nodes = WeakTensorKeyDictionary()
        self._known: set[fx.Node] = set()  # whatever the inputs are
        self._all_may_depend = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is run under `torch.compile`; to be kept from it would import it, which takes a second."""
        return False

    def begin(self, inputs: tuple[Tensor, ...]) -> None:
        for number, value in enumerate(inputs):
            self._note(value, self._graph.placeholder(f"input{number}"))

    def end(self, result: Any) -> fx.GraphModule:
        """The graph whose output this is."""
        self._graph.output(self._recorded(result))
        return fx.GraphModule(self._constants, self._graph)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATEN.lift_fresh.default:
            func = _ATEN.lift_fresh_copy.default  # a constant that may be written to must be new at each call
        traits = _traits(func)
        if traits.is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        node_args, node_kwargs = self._recorded(args), self._recorded(kwargs)
        known = self._is_known(node_args, node_kwargs, traits)
        if traits.tells_values and not known:
            raise ValueError(
                f"a branch, item() or the like asks for a number that depends on what is sampled, by {func}"
            )
        if func in self._decompositions and not known:
            with self:
                return self._decompositions[func](*args, **kwargs)
        result = func(*args, **kwargs)
        node = self._graph.create_node("call_function", func, node_args, node_kwargs)
        if known:
            self._known.add(node)
        self._note_result(result, node)
        return result

    def _is_known(self, args: Any, kwargs: Any, traits: _Traits) -> bool:
        known = [node in self._known for node in _nodes_of((args, kwargs))]
        if traits.writes and any(known) and (traits.is_random or not all(known)):
            self._all_may_depend = True  # what was known may be seen by other names: views of what was written to
        return all(known) and not traits.is_random and not self._all_may_depend

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

    def _recorded(self, value: Any) -> Any:
        """The same with a node for each tensor: a constant if nothing here has made it."""
        if isinstance(value, Tensor):
            node = self._nodes.get(value)
            return self._constant(value) if node is None else node
        if isinstance(value, torch.Generator):
            return self._generator(value)
        if isinstance(value, tuple | list):
            parts = [self._recorded(part) for part in value]
            return tuple(parts) if isinstance(value, tuple) else parts
        if isinstance(value, dict):
            return {key: self._recorded(part) for key, part in value.items()}
        return value

    def _constant(self, value: Tensor) -> fx.Node:
        if type(value) is not Tensor and not isinstance(value, torch.nn.Parameter):
            # Its class wraps what comes of it in tensors that nobody has seen being made.
            raise ValueError(f"tensors of the class {type(value).__name__} have rules that no graph can hold")
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


class _Traits(NamedTuple):
    """What there is to know of an operator.

    Attributes:
        is_composite: it only calls others.
        is_random: it draws random numbers.
        tells_values: its result is a number of Python that depends on entries of tensors.
        writes: it changes a tensor in place.
    """

    is_composite: bool
    is_random: bool
    tells_values: bool
    writes: bool


@cache
def _traits(func: OpOverload[..., Any]) -> _Traits:
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return _Traits(
        composite,
        torch.Tag.nondeterministic_seeded in func.tags,
        torch.Tag.data_dependent_output in func.tags,
        func._schema.is_mutable,
    )


def _nodes_of(value: Any) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _nodes_of(part)
    elif isinstance(value, dict):
        yield from _nodes_of(list(value.values()))


def without_storage(value: Tensor) -> Tensor:
    """Shape, strides and dtype of a tensor, as a tensor."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class _PlainProducts(TorchFunctionMode):
    """Cumulative products as a few multiplications: torch's derivative looks for zeros, which no graph does cheaply.

    Of n numbers, ⌈log₂ n⌉ multiplications of vectors. Stick-breaking has one: Dirichlet and LKJ in unconstrained space.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (torch.cumprod, Tensor.cumprod) and "out" not in kwargs:
            return cumulative_product(*args, **kwargs)
        return function(*args, **kwargs)


def cumulative_product(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None and not (input.is_floating_point() or input.is_complex()):
        dtype = torch.int64
    product = input if dtype is None else input.to(dtype)
    if not product.dim():
        return product.clone()
    shift, size = 1, product.shape[dim]
    while shift < size:
        first, later = product.narrow(dim, 0, shift), product.narrow(dim, shift, size - shift)
        product = torch.cat([first, later * product.narrow(dim, 0, size - shift)], dim)
        shift *= 2
    return product


_ARITHMETIC = {_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor}


def forward_differentiable(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without what torch cannot differentiate forwards; changed in place.

    Numbers become tensors where they meet a tensor without dimensions: the tangent of x + 1.0, x a single float32, has
    float64 (pytorch issue 90065), and factorisations refuse what comes of it. And atanh x becomes a difference of
    logarithms, for tracing the reverse derivative of its tangent ends the process (torch 2.13).
    """
    for index, node in enumerate(module.graph.nodes):
        with module.graph.inserting_before(node):
            if node.target is _ATEN.atanh.default:
                _replace_atanh(module.graph, node)
            elif node.target in _ARITHMETIC and isinstance(node.args[1], int | float):
                value, device = node.args[0].meta["val"], node.args[0].meta["device"]
                if not value.dim() and value.is_floating_point():
                    name = f"_number{index}"
                    number = torch.tensor(node.args[1], dtype=value.dtype, device=device)
                    module.register_buffer(name, number)
                    node.update_arg(1, module.graph.get_attr(name))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _replace_atanh(graph: fx.Graph, node: fx.Node) -> None:
    above = graph.call_function(_ATEN.log1p.default, node.args)
    below = graph.call_function(_ATEN.log1p.default, (graph.call_function(_ATEN.neg.default, node.args),))
    difference = graph.call_function(_ATEN.sub.Tensor, (above, below))
    half = graph.call_function(_ATEN.div.Scalar, (difference, 2))
    half.meta = node.meta
    node.replace_all_uses_with(half)
