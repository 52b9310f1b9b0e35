"""Source generation for graphs with tall matrices: one chain after the other, with lanes along rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from pyro_manifold.compiled.native.emit import DTYPES, Loop, Source, loaded, program, unload
from pyro_manifold.compiled.native.row_graphs import RowsGraphWriter
from pyro_manifold.compiled.native.rows import RowsWriter, tall_rows
from pyro_manifold.compiled.native.values import Shape, UnsupportedOperatorError, Value


def rows_source_of(loop: Loop, shapes: Sequence[Shape], dtype: torch.dtype, width: int) -> Source:
    """Generate the C source of a loop over chains, in which vectors are rows of tall matrices.

    Args:
        loop: the graphs.
        shapes: shapes of the inputs, for one chain.
        dtype: float64 or float32.
        width: number of lanes.

    Raises:
        UnsupportedOperatorError: if there is no tall matrix, or if the graphs have operators that cannot be written so.
    """
    rows = tall_rows(shapes)
    if rows is None or dtype not in DTYPES:
        raise UnsupportedOperatorError("no tall matrices")
    writer = RowsWriter(rows, width)
    inputs = [_loaded(loop, writer, k, shape) for k, shape in enumerate(shapes)]
    begun = [writer.stored(value) for value in RowsGraphWriter(loop.begin, writer, dtype).write(inputs)]
    state = [writer.copied(value) for value in begun[: loop.carried]]
    constants = _constant_states(loop, writer, state)
    writer.lines.append("for (int64_t step = 0; step < steps; step++) {")
    writer.arithmetic = writer.of_rows = 0
    _write_step(RowsGraphWriter(loop.step, writer, dtype), writer, inputs, state, constants)
    arithmetic, of_rows = writer.arithmetic, writer.of_rows
    writer.lines.append("}")
    outputs = RowsGraphWriter(loop.end, writer, dtype).write([*inputs, *begun[loop.carried :], *state])
    for number, value in enumerate(outputs):
        unload(writer, number, value) if value.rows is None else writer.unload(number, value)
    functions, lines, elements = writer.lines.resolved(writer.widths, int(writer.count))
    result = [tuple(rows if d == x.rows else n for d, n in enumerate(x.shape)) for x in outputs]
    text = program(writer, functions, lines, dtype, by_rows=True)
    elements += writer.elements
    return Source(text, writer.numbers, writer.indices, result, elements, arithmetic + of_rows, of_rows)


def _loaded(loop: Loop, writer: RowsWriter, number: int, shape: Shape) -> Value:
    """Load an input, if it is used; loading a tall matrix takes as long as a statement of a step."""
    if len(shape) == 3 and shape[-2] == writer.rows:
        used = any(_is_used(graph, number) for graph in (loop.begin, loop.step, loop.end))
        return writer.loaded(number, shape) if used else replace(_unused(shape), rows=1)
    return replace(loaded(writer, number, shape), shared=number in loop.shared)


def _is_used(graph: torch.fx.GraphModule, number: int) -> bool:
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return bool(inputs[number].users)


def _unused(shape: Shape) -> Value:
    def at(_: object) -> str:
        raise UnsupportedOperatorError("an input that is not used")

    return Value(shape, at)


def _constant_states(loop: Loop, writer: RowsWriter, state: Sequence[Value]) -> dict[int, str]:
    """Write the tall states that are constants after a step, as many gradients are; return their arrays."""
    constants: dict[int, str] = {}
    for k, node in enumerate(next(node for node in loop.step.graph.nodes if node.op == "output").args[0]):
        rows = state[k].rows
        if rows is not None and node.op == "get_attr":
            tensor = getattr(loop.step, node.target).detach().resolve_neg().to("cpu")
            constants[k] = str(writer.copied(writer.laid_out(tensor, rows)).array)
    return constants


def _write_step(
    graph: RowsGraphWriter,
    writer: RowsWriter,
    inputs: list[Value],
    state: list[Value],
    constants: Mapping[int, str],
) -> None:
    """Write a step; arrays of rows of the old and of the new state are exchanged, and others are copied."""
    earlier = {*writer.widths, None}
    written = graph.write([*inputs, *state])
    after = {
        k: graph.output(x, old.rows)
        for k, (x, old) in enumerate(zip(written, state, strict=True))
        if k not in constants
    }
    for k, x in after.items():
        if x.rows is None:
            after[k] = writer.copied(x) if x.array in {value.array for value in state} else writer.stored(x)
        else:
            after[k] = writer.copied(x) if x.array in earlier else x
            earlier.add(after[k].array)
    for k, old in enumerate(state):
        if k in constants:
            writer.lines.append(f"{old.array} = {constants[k]};")
        elif old.rows is None:
            writer.lines.append(f"COPY({old.array}, {after[k].array}, {old.size});")
        else:
            new = after[k].array
            writer.lines.append(f"{{ Vectors last = {old.array}; {old.array} = {new}; {new} = last; }}")
