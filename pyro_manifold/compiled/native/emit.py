"""Source generation: from graphs to a loop over many chains in C."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, fx

from pyro_manifold.compiled.native.matrices import factors_transpose
from pyro_manifold.compiled.native.operators import OF_STORAGE, OPERATORS, mapped
from pyro_manifold.compiled.native.outlining import shared_statements
from pyro_manifold.compiled.native.rolling import rolled
from pyro_manifold.compiled.native.values import FIRST, Index, Shape, UnsupportedOperatorError, Value, entry, flat
from pyro_manifold.compiled.native.writer import Writer
from pyro_manifold.compiled.strides import owner

_WHOLE_NUMBERS_ALLOWED = {
    *("_to_copy", "sum", "cumsum", "where", "mul", "add", "sub", "index", "index_select", "view", "_unsafe_view"),
    *("reshape", "expand", "unsqueeze", "squeeze", "select", "slice", "clone", "alias", "detach"),
    *("argmax", "argmin", "clamp", "gather", "maximum", "minimum", "remainder", "scatter"),
}
_COST_OF_AN_OPERATOR = 9  # 3 ns: operators wait for each other, which dominates in steps of small models
_DEEPEST = 100  # a loop of the model puts expression inside expression; Python allows 1000 calls inside each other
_DEEPEST_IN_LONG, _LONG = 3, 3000
"""Depth of expressions in graphs of so many nodes. The sums that a long loop of the model accumulates are then stored
every few of its steps, and not in one statement, so that its steps are equal statements, and a loop in C."""

DTYPES = {torch.float64: "", torch.float32: "#define SINGLE\n"}


class GraphWriter:
    """Writes the nodes of a graph as C, one after the other.

    An elementwise node is not stored if its only user reads each element once: its expression is inlined in the loop of
    the user.

    Args:
        graph: graph of one chain, in which values that are the same for all chains are constants.
        writer: writer of the C source.
        dtype: dtype of all numbers.
    """

    def __init__(self, graph: fx.GraphModule, writer: Writer, dtype: torch.dtype) -> None:
        self._graph, self._writer, self._dtype = graph, writer, dtype
        self._deepest = _DEEPEST if len(graph.graph.nodes) < _LONG else _DEEPEST_IN_LONG
        self._values: dict[fx.Node, Any] = {}

    def write(self, inputs: Sequence[Value]) -> list[Value]:
        """Write the graph for these inputs, and return its outputs."""
        given = iter(inputs)
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":
                self._values[node] = self._constant(getattr(self._graph, node.target))
            elif node.op == "output":
                return [self._value_of(argument) for argument in node.args[0]]
            else:
                self._writer.arithmetic += _COST_OF_AN_OPERATOR
                self._values[node] = self._written(node)
        raise UnsupportedOperatorError("a graph without an output")

    def _constant(self, tensor: Tensor) -> Value:
        if tensor.is_complex():
            raise UnsupportedOperatorError("complex numbers")
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
                raise UnsupportedOperatorError(f"part {node.args[1]} of {operator_name(node.args[0])}")
            return part
        name = operator_name(node)
        if name not in OPERATORS:
            is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            advice = (
                ", which draws random numbers: make them an input (a kernel draws them in noise)" if is_random else ""
            )
            raise UnsupportedOperatorError(f"the operator {name}{advice}")
        arguments = [self._value_of(argument) for argument in node.args]
        options = {key: self._value_of(option) for key, option in node.kwargs.items() if key not in _OF_MEMORY}
        if name in _BY_INDEX and any(self._is_mask(index) for index in node.args[1]):  # type: ignore[union-attr]
            raise UnsupportedOperatorError("a mask that depends on values of sites")
        if name in OF_STORAGE:
            arguments = [*self._in_storage(node, OF_STORAGE[name], arguments)]
        if name == "as_strided_scatter":
            strides, begin = _layout(node.args[0])
            options |= {"strides": strides, "first": begin - _layout(owner(node.args[0]))[1]}
        if name in factors_transpose():
            options["transposed"] = node.args[0].meta["val"].is_contiguous()  # type: ignore[union-attr]
        if name == "masked_fill" and _dtype(node) == torch.bool and not isinstance(arguments[2], Value):
            arguments[2] = bool(arguments[2])
        result = OPERATORS[name].emit(self._writer, self._shape(node, name), *arguments, **options)
        if name in _OF_ANOTHER_DTYPE:
            result = _converted(result, _dtype(node.args[_OF_ANOTHER_DTYPE[name]]), _dtype(node))
        if isinstance(result, Value) and (result.depth > self._deepest or (result.computes and not is_read_once(node))):
            return self._writer.stored(result)
        return result

    def _is_mask(self, index: Any) -> bool:
        """Return whether an index is a mask that is not a constant."""
        return index is not None and _dtype(index) in (torch.bool, torch.uint8) and self._values[index].constant is None

    def _in_storage(self, node: fx.Node, size_at: int, arguments: list[Any]) -> list[Any]:
        """Return the arguments of an operator on the storage of its first argument, which another node may own."""
        own = owner(node.args[0])
        size, steps, offset = [*arguments[size_at:], None][:3]
        strides, begin = _layout(own)
        offset = (_layout(node.args[0])[1] if offset is None else offset) - begin
        storage = _in_memory_order(self._values[own], strides)
        last = offset + sum((n - 1) * step for n, step in zip(size, steps, strict=True))
        if math.prod(size) and not 0 <= offset <= last < storage.size:
            raise UnsupportedOperatorError("strides through more than one tensor")
        return [storage, *arguments[1:size_at], size, steps, offset]

    def _shape(self, node: fx.Node, name: str) -> Shape | None:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return None
        if value.is_floating_point():
            if value.dtype != self._dtype and value.dim():
                raise UnsupportedOperatorError(f"{str(value.dtype).removeprefix('torch.')} among other dtypes")
        elif value.dtype == torch.bool:
            if name == "add":
                raise UnsupportedOperatorError("sums of booleans")  # which torch returns as booleans
        elif name not in _WHOLE_NUMBERS_ALLOWED:
            raise UnsupportedOperatorError(f"integers from {name}")
        return tuple(value.shape)


_BY_INDEX = {"index", "index_put", "_unsafe_index", "_unsafe_index_put"}

_FEWEST_BYTES = 4  # integer size in which numbers of a usual size do not wrap around

_OF_ANOTHER_DTYPE = {"_to_copy": 0, "copy": 1}
"""Operators whose result may have another dtype than their input, and the position of that argument."""


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, Tensor) else None


def _converted(value: Value, source: torch.dtype | None, target: torch.dtype | None) -> Value:
    """Convert a value between dtypes; in C all have one dtype, with integers truncated and booleans 0 or 1."""
    if source is None or target is None or source == torch.bool or source == target:
        return value
    narrower = source.is_floating_point == target.is_floating_point and target.itemsize < source.itemsize
    if value.constant is None and target != torch.bool and (narrower or target.itemsize < _FEWEST_BYTES):
        raise UnsupportedOperatorError(f"values rounded or wrapped to {str(target).removeprefix('torch.')}")
    if target.is_floating_point:
        return value
    if target == torch.bool:
        return replace(mapped(value.shape, "truth({0} != spread(0))", value), shared=value.shared)
    if source.is_floating_point:
        return replace(mapped(value.shape, "v_trunc({0})", value), shared=value.shared)
    return value


def _layout(node: Any) -> tuple[Sequence[int], int]:
    """Return the strides of the value of a node, and its offset in the storage of which it is a view."""
    if "layout" in node.meta:
        layout: tuple[Sequence[int], int] = node.meta["layout"]
        return layout
    if node.op != "call_function" or owner(node) is not node:
        raise UnsupportedOperatorError("strides through an unknown storage")
    return node.meta["val"].stride(), 0


def _in_memory_order(value: Value, strides: Sequence[int]) -> Value:
    """Return a view with dimensions in the order of memory, without those of size 1."""
    order = sorted((d for d, n in enumerate(value.shape) if n != 1), key=lambda d: -strides[d])
    shape = tuple(value.shape[d] for d in order)
    if [strides[d] for d in order] != list(torch.empty(shape, device="meta").stride()):
        raise UnsupportedOperatorError("strides through a storage with gaps")
    places = [order.index(d) if d in order else None for d in range(len(value.shape))]
    return value.viewed(shape, lambda index: [FIRST if k is None else index[k] for k in places])


_OF_MEMORY = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}


def operator_name(node: Any) -> str:
    target = getattr(node, "target", node)
    return target.__name__.split(".")[0] if callable(target) else str(target)


def is_read_once(node: fx.Node) -> bool:
    """Return whether each element of a node is read at most once."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_function":
        return False
    user, name = users[0], operator_name(users[0])
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
    """The source of a compiled loop, and the constants with which it is called.

    Attributes:
        text: text of the C file, in which the width of vectors is a macro.
        numbers: constants of the dtype.
        indices: integer constants.
        shapes: shapes of the outputs, for one chain.
        elements: number of vectors in its arrays.
        arithmetic: approximate cost of a pass of the loop for each chain, as in `Writer`.
        of_rows: part of it with lanes along rows of tall matrices, in a loop over single chains; 0 if lanes are chains.
    """

    text: str
    numbers: list[Tensor]
    indices: list[Tensor]
    shapes: list[Shape]
    elements: int
    arithmetic: int
    of_rows: int = 0

    @property
    def by_rows(self) -> bool:
        """Return whether all lanes of a vector belong to one chain."""
        return self.of_rows > 0


@dataclass(frozen=True)
class Loop:
    """``state, kept = begin(inputs)``; ``state = step(inputs, state)``, again and again; ``end(inputs, kept, state)``.

    All are graphs of one chain.

    Attributes:
        begin: graph from inputs to the state, followed by values that are kept for the end.
        step: graph from inputs and the state to the next state.
        end: graph from inputs, kept values and the last state to the outputs.
        carried: number of tensors in a state.
        shared: indices of the inputs that are always the same for all chains; only these may hold indices.
        summed: indices of the outputs that are summed over chains.
    """

    begin: fx.GraphModule
    step: fx.GraphModule
    end: fx.GraphModule
    carried: int
    shared: frozenset[int] = frozenset()
    summed: frozenset[int] = frozenset()


def source_of(loop: Loop, shapes: Sequence[Shape], dtype: torch.dtype) -> Source:
    """Generate the C source of a loop.

    Args:
        loop: the graphs.
        shapes: shapes of the inputs, for one chain.
        dtype: float64 or float32.

    Raises:
        UnsupportedOperatorError: if the graphs have operators that cannot be written in C.
    """
    if dtype not in DTYPES:
        raise UnsupportedOperatorError(str(dtype))
    writer = Writer()
    inputs = [replace(loaded(writer, k, shape), shared=k in loop.shared) for k, shape in enumerate(shapes)]
    begun = [writer.stored(value) for value in GraphWriter(loop.begin, writer, dtype).write(inputs)]
    state = [writer.copied(value) for value in begun[: loop.carried]]
    writer.lines.append("for (int64_t step = 0; step < steps; step++) {")
    writer.arithmetic = 0
    _write_step(GraphWriter(loop.step, writer, dtype), writer, inputs, state)
    arithmetic = writer.arithmetic
    writer.lines.append("}")
    outputs = GraphWriter(loop.end, writer, dtype).write([*inputs, *begun[loop.carried :], *state])
    for number, value in enumerate(outputs):
        (_add_up if number in loop.summed else unload)(writer, number, value)
    if not loop.carried:  # a function without steps
        arithmetic = writer.arithmetic
    functions, lines = shared_statements(rolled(writer.lines))
    text = program(writer, functions, lines, dtype)
    result = [value.shape for value in outputs]
    return Source(text, writer.numbers, writer.indices, result, writer.elements, arithmetic)


def program(
    writer: Writer, functions: Sequence[str], lines: Sequence[str], dtype: torch.dtype, by_rows: bool = False
) -> str:
    """Return the text of a program.

    Args:
        writer: writer of the constants.
        functions: functions.
        lines: lines of the loop over chains, which may call these.
        dtype: float64 or float32.
        by_rows: whether all lanes of a vector belong to one chain.
    """
    headers = (*_HEADERS, "rows.h") if by_rows else _HEADERS
    return DTYPES[dtype] + _PROGRAM.format(
        headers="\n".join(files(__package__).joinpath(name).read_text() for name in headers),
        functions="\n".join(functions),
        constants=_parameters(writer),
        body="\n    ".join(lines),
        together="1" if by_rows else "W",
        chain="first" if by_rows else "first + l < chains ? first + l : chains - 1",
    )


def _write_step(graph: GraphWriter, writer: Writer, inputs: list[Value], state: list[Value]) -> None:
    after = graph.write([*inputs, *state])
    own = {value.array for value in state}
    # All of the next state, before any of this one is overwritten.
    after = [writer.copied(x) if x.array in own else writer.stored(x) for x in after]
    for old, new in zip(state, after, strict=True):
        writer.lines.append(f"COPY({old.array}, {new.array}, {old.size});")


def loaded(writer: Writer, number: int, shape: Shape) -> Value:
    """Load an input into lanes; missing lanes repeat the last chain."""
    size = math.prod(shape)
    array = writer.array(size)
    element = f"inputs[{number}][chain[l] * strides[{number}] + i]"
    loops = f"for (int i = 0; i < {size}; i++) for (int l = 0; l < W; l++)"
    writer.lines.append(f"{loops} LANE({entry(array, 'i')}, l) = {element};")
    return writer.value(shape, array)


def unload(writer: Writer, number: int, value: Value) -> None:
    size = value.size

    def body(index: Index) -> str:
        place = f"chain[l] * {size} + INSIDE({flat(index, value.shape)}, {size})"
        return f"V x = {value.at(index)}; for (int l = 0; l < W; l++) outputs[{number}][{place}] = LANE(x, l);"

    writer.lines.append(writer.for_each(value.shape, body))


def _add_up(writer: Writer, number: int, value: Value) -> None:
    """Add an output of all chains to the sum so far, without lanes that have no chain."""
    size = value.size

    def body(index: Index) -> str:
        add = "for (int l = 0; l < W; l++) sum += first + l < chains ? LANE(x, l) : 0;"
        place = f"INSIDE({flat(index, value.shape)}, {size})"
        return f"V x = {value.at(index)}; T sum = 0; {add} outputs[{number}][{place}] += sum;"

    writer.lines.append(writer.for_each(value.shape, body))


def _parameters(writer: Writer) -> str:
    given = (("Numbers", "k", "numbers", writer.numbers), ("Integers", "j", "indices", writer.indices))
    lines = [
        f"CONSTANT({kind}, {letter}{k}, {source}[{k}], {tensor.numel()});"
        for kind, letter, source, tensors in given
        for k, tensor in enumerate(tensors)
    ]
    return "\n  ".join(lines)


_HEADERS = ("lanes.h", "special.h", "factors.h", "sorting.h")

_PROGRAM = """\
{headers}
{functions}

void run(int64_t chains, int64_t steps, const T *const *restrict inputs, const int64_t *restrict strides,
         T *const *restrict outputs, const T *const *restrict numbers, const int64_t *const *restrict indices) {{
  {constants}
  for (int64_t first = 0; first < chains; first += {together}) {{
    int64_t chain[W];
    for (int l = 0; l < W; l++) chain[l] = {chain};
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
