"""From graphs to the source of a loop over many chains."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, fx

from pyro_manifold.graphs.native.matrices import FACTORS_TRANSPOSE
from pyro_manifold.graphs.native.operators import OPERATORS, mapped
from pyro_manifold.graphs.native.repeats import shared_statements
from pyro_manifold.graphs.native.values import NotCoveredError, Shape, Value, flat
from pyro_manifold.graphs.native.writer import Writer

_WHOLE_NUMBERS_ALLOWED = {
    *("_to_copy", "sum", "cumsum", "where", "mul", "add", "sub", "index", "index_select", "view", "_unsafe_view"),
    *("reshape", "expand", "unsqueeze", "squeeze", "select", "slice", "clone", "alias", "detach"),
}
_DTYPES = {torch.float64: "", torch.float32: "#define SINGLE\n"}


class GraphWriter:
    """Writes the nodes of a graph, one after the other.

    A node that computes each of its elements from one element of its operands is not stored if its only user reads
    each once: the user's loop has its expression.

    Args:
        graph: of one chain; what is the same for all chains is a constant in it.
        writer: takes the text.
        dtype: of all numbers.
    """

    def __init__(self, graph: fx.GraphModule, writer: Writer, dtype: torch.dtype) -> None:
        self._graph, self._writer, self._dtype = graph, writer, dtype
        self._values: dict[fx.Node, Any] = {}

    def write(self, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of the graph for these inputs."""
        given = iter(inputs)
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":
                self._values[node] = self._constant(getattr(self._graph, node.target))
            elif node.op == "output":
                return [self._value_of(argument) for argument in node.args[0]]
            else:
                self._values[node] = self._written(node)
        raise NotCoveredError("a graph without an output")

    def _constant(self, tensor: Tensor) -> Value:
        if tensor.is_complex():
            raise NotCoveredError("complex numbers")
        return self._writer.constant(tensor.detach().resolve_neg().to("cpu"))

    def _value_of(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self._values[argument]
        if isinstance(argument, list | tuple):
            return [self._value_of(part) for part in argument]
        return argument

    def _written(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            part = self._values[node.args[0]][node.args[1]]  # type: ignore[index]
            if part is None and node.users:
                raise NotCoveredError(f"part {node.args[1]} of {_name(node.args[0])}")
            return part
        name = _name(node)
        if name not in OPERATORS:
            raise NotCoveredError(f"the operator {name}")
        arguments = [self._value_of(argument) for argument in node.args]
        options = {key: self._value_of(option) for key, option in node.kwargs.items() if key not in _OF_MEMORY}
        if name in FACTORS_TRANSPOSE:
            options["transposed"] = node.args[0].meta["val"].is_contiguous()  # type: ignore[union-attr]
        result = OPERATORS[name].emit(self._writer, self._shape(node, name), *arguments, **options)
        if name in _OF_ANOTHER_DTYPE:
            result = _converted(result, _dtype(node.args[_OF_ANOTHER_DTYPE[name]]), _dtype(node))
        if isinstance(result, Value) and result.computes and not _read_once(node):
            return self._writer.stored(result)
        return result

    def _shape(self, node: fx.Node, name: str) -> Shape | None:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return None
        if value.is_floating_point():
            if value.dtype != self._dtype and value.dim():
                raise NotCoveredError(f"numbers of {str(value.dtype).removeprefix('torch.')} among others")
        elif value.dtype == torch.bool:
            if name == "add":
                raise NotCoveredError("sums of truth values")  # which are true or false in torch
        elif name not in _WHOLE_NUMBERS_ALLOWED:
            raise NotCoveredError(f"whole numbers from {name}")
        return tuple(value.shape)


_OF_ANOTHER_DTYPE = {"_to_copy": 0, "copy": 1}
"""Operators whose result may have another dtype than this argument, the one that it comes from."""


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, Tensor) else None


def _converted(value: Value, source: torch.dtype | None, target: torch.dtype | None) -> Value:
    """All are numbers of one dtype in C: whole numbers and truth values have lost what is not whole, or not 1."""
    if source is None or target is None or source == torch.bool or target.is_floating_point:
        return value
    if target == torch.bool:
        return replace(mapped(value.shape, "truth({0} != spread(0))", value), shared=value.shared)
    if source.is_floating_point:
        return replace(mapped(value.shape, "v_trunc({0})", value), shared=value.shared)
    return value


_OF_MEMORY = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}


def _name(node: Any) -> str:
    target = getattr(node, "target", node)
    return target.__name__.split(".")[0] if callable(target) else str(target)


def _read_once(node: fx.Node) -> bool:
    """Whether each element of a node is asked for once."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_function":
        return False
    user, name = users[0], _name(users[0])
    if name not in OPERATORS or not OPERATORS[name].reads_once or name in ("var", "as_strided"):
        return False
    if sum(argument is node for argument in user.all_input_nodes) != 1 or list(user.args).count(node) > 1:
        return False
    read, written = node.meta["val"], user.meta.get("val")
    if name in ("sum", "mean", "amax", "amin", "prod", "any", "all", "cat", "cumsum"):
        return True
    return isinstance(written, Tensor) and written.numel() <= read.numel()


@dataclass(frozen=True)
class Source:
    """The text of a compiled loop, and what it is called with.

    Attributes:
        text: of the C file, the width of its vectors left open.
        numbers: constants of the dtype.
        indices: constants of integers.
        shapes: of the outputs, for one chain.
        elements: vectors that its arrays hold.
        arithmetic: about how many operations a pass of the loop takes for each chain.
    """

    text: str
    numbers: list[Tensor]
    indices: list[Tensor]
    shapes: list[Shape]
    elements: int
    arithmetic: int


@dataclass(frozen=True)
class Loop:
    """``state, kept = begin(inputs)``; ``state = step(inputs, state)``, again and again; ``end(inputs, kept, state)``.

    All are graphs of one chain.

    Attributes:
        begin: inputs to the state, followed by what is kept for the end.
        step: inputs and the state to the next state.
        end: inputs, what was kept and the last state to the outputs.
        carried: how many tensors a state has.
        shared: numbers of the inputs that are always the same for all chains; these may hold indices.
    """

    begin: fx.GraphModule
    step: fx.GraphModule
    end: fx.GraphModule
    carried: int
    shared: frozenset[int] = frozenset()


def source_of(loop: Loop, shapes: Sequence[Shape], dtype: torch.dtype) -> Source:
    """The C of a loop.

    Args:
        loop: the graphs.
        shapes: of the inputs, for one chain.
        dtype: float64 or float32.

    Raises:
        NotCoveredError: if something in the graphs is not written in C.
    """
    if dtype not in _DTYPES:
        raise NotCoveredError(str(dtype))
    writer = Writer()
    inputs = [replace(_loaded(writer, k, shape), shared=k in loop.shared) for k, shape in enumerate(shapes)]
    begun = [writer.stored(value) for value in GraphWriter(loop.begin, writer, dtype).write(inputs)]
    state = [writer.copied(value) for value in begun[: loop.carried]]
    writer.lines.append("for (int64_t step = 0; step < steps; step++) {")
    writer.arithmetic = 0
    _write_step(GraphWriter(loop.step, writer, dtype), writer, inputs, state)
    arithmetic = writer.arithmetic
    writer.lines.append("}")
    outputs = GraphWriter(loop.end, writer, dtype).write([*inputs, *begun[loop.carried :], *state])
    for number, value in enumerate(outputs):
        _unload(writer, number, value)
    functions, lines = shared_statements(writer.lines)
    text = _PROGRAM.format(
        lanes=files(__package__).joinpath("lanes.h").read_text(),
        functions="\n".join(functions),
        constants=_parameters(writer),
        body="\n    ".join(lines),
    )
    result = [value.shape for value in outputs]
    return Source(_DTYPES[dtype] + text, writer.numbers, writer.indices, result, writer.elements, arithmetic)


def _write_step(graph: GraphWriter, writer: Writer, inputs: list[Value], state: list[Value]) -> None:
    after = graph.write([*inputs, *state])
    own = {value.array for value in state}
    # All of the next state, before any of this one is overwritten.
    after = [writer.copied(x) if x.array in own else writer.stored(x) for x in after]
    for old, new in zip(state, after, strict=True):
        writer.lines.append(f"memcpy({old.array}, {new.array}, sizeof(V) * {old.size});")


def _loaded(writer: Writer, number: int, shape: Shape) -> Value:
    """An input in lanes; the last chain stands in for those that are missing."""
    size = math.prod(shape)
    array = writer.array(size)
    element = f"inputs[{number}][chain[l] * strides[{number}] + i]"
    loops = f"for (int i = 0; i < {size}; i++) for (int l = 0; l < W; l++)"
    writer.lines.append(f"{loops} LANE({array}[i], l) = {element};")
    return writer.value(shape, array)


def _unload(writer: Writer, number: int, value: Value) -> None:
    size = value.size

    def body(index: Sequence[str]) -> str:
        place = f"chain[l] * {size} + {flat(index, value.shape)}"
        return f"V x = {value.at(index)}; for (int l = 0; l < W; l++) outputs[{number}][{place}] = LANE(x, l);"

    writer.lines.append(writer.for_each(value.shape, body))


def _parameters(writer: Writer) -> str:
    numbers = [f"const T *restrict k{k} = numbers[{k}];" for k in range(len(writer.numbers))]
    indices = [f"const int64_t *restrict j{k} = indices[{k}];" for k in range(len(writer.indices))]
    return "\n  ".join([*numbers, *indices])


_PROGRAM = """\
{lanes}
{functions}

void run(int64_t chains, int64_t steps, const T *const *restrict inputs, const int64_t *restrict strides,
         T *const *restrict outputs, const T *const *restrict numbers, const int64_t *const *restrict indices) {{
  {constants}
  for (int64_t first = 0; first < chains; first += W) {{
    int64_t chain[W];
    for (int l = 0; l < W; l++) chain[l] = first + l < chains ? first + l : chains - 1;
    {body}
  }}
}}

/* Loop after loop: some inputs have a row for each of them, others come from the outputs of the one before. */
void chain(int64_t chains, int64_t loops, const int64_t *restrict steps, int64_t given, const T *const *restrict inputs,
           const int64_t *restrict strides, const int64_t *restrict rows, const int64_t *restrict fed, int64_t made,
           T *const *restrict outputs, const int64_t *restrict sizes, const T *const *restrict numbers,
           const int64_t *const *restrict indices) {{
  const T *in[given];
  T *out[made];
  for (int64_t loop = 0; loop < loops; loop++) {{
    for (int64_t k = 0; k < given; k++)
      in[k] = loop && fed[k] >= 0 ? outputs[fed[k]] + (loop - 1) * sizes[fed[k]] : inputs[k] + loop * rows[k];
    for (int64_t k = 0; k < made; k++) out[k] = outputs[k] + loop * sizes[k];
    run(chains, steps[loop], in, strides, out, numbers, indices);
  }}
}}
"""
