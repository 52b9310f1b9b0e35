"""Layout for tall matrices: one chain after the other, with the lanes of a vector along rows.

A tall matrix is stored as vectors of consecutive rows, ``(vectors of a column, columns)``; all other values are equal
in all lanes. Elementwise operators then need no code of their own: it is that of a matrix of fewer rows. Sums over rows
are over vectors first, then over lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pyro_manifold.compiled.native.chunks import Schedule, Statement
from pyro_manifold.compiled.native.matrices import cut
from pyro_manifold.compiled.native.values import Index, Place, Shape, UnsupportedOperatorError, Value, entry, flat
from pyro_manifold.compiled.native.writer import COST_OF_AN_ELEMENT, Writer

_FEWEST_ROWS = 128
_ROWS_OF_A_COLUMN = 16  # at least; systems of equations for the columns take most of the time where there are fewer


class Vectors(int):
    """Number of vectors of a column: loops over one, which are over a chunk, have ``m`` in its place."""

    def __format__(self, _: str) -> str:
        return "m"


def tall_rows(shapes: Sequence[Shape]) -> int | None:
    """Return the number of rows of the largest tall matrix among inputs; None if there is none."""
    tall = [
        (math.prod(shape), shape[-2])
        for shape in shapes
        if len(shape) > 2 and shape[-2] >= max(_FEWEST_ROWS, _ROWS_OF_A_COLUMN * shape[-1])
    ]
    return max(tall)[1] if tall else None


class RowsWriter(Writer):
    """Writer of statements on rows.

    Args:
        rows: number of rows of tall matrices.
        width: number of lanes.

    Attributes:
        of_rows: cost of statements on rows, as ``arithmetic`` is that of all others.
    """

    lines: Schedule  # type: ignore[assignment]

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.lines, self.of_rows = Schedule(), 0
        self.rows, self.width = rows, width
        self.count = Vectors(-(-rows // width))
        self.widths: dict[str, int] = {}
        self._packed = 0
        self._laid_out: dict[tuple[int, int], str] = {}

    # ---- arrays of rows ------------------------------------------------------------------------------------------

    def shape_of(self, shape: Sequence[int], rows: int) -> Shape:
        """Return a shape in which the dimension of rows counts vectors."""
        return (*shape[:rows], self.count, *shape[rows + 1 :])

    def rows_array(self, width: int) -> str:
        """Return the name of a new array of rows, with so many vectors side by side."""
        self._arrays += 1
        self.widths[f"a{self._arrays}"] = width
        return f"a{self._arrays}"

    def rows_value(self, shape: Shape, rows: int, array: str) -> Value:
        """Return an array of rows as a value."""
        order = [rows, *(d for d in range(len(shape)) if d != rows)]
        lengths = tuple(shape[d] for d in order)
        leads = all(n == 1 for n in shape[:rows])
        at: Callable[[Index], str] = lambda index: entry(array, flat([index[d] for d in order], lengths))  # noqa: E731
        return Value(shape, at, array=array if leads else None, rows=rows)

    def stored(self, value: Value) -> Value:
        if value.rows is None:
            return super().stored(value)
        return value if value.array is not None else self.copied(value)

    def copied(self, value: Value) -> Value:
        if value.rows is None:
            return super().copied(value)
        array = self.rows_array(value.size // self.count)
        result = self.rows_value(value.shape, value.rows, array)
        body = self.for_each(value.shape, lambda index: f"{result.at(index)} = {value.at(index)};")
        self.lines.add(Statement(body + self._filling(array)))
        self.of_rows += COST_OF_AN_ELEMENT * value.size
        return result

    def _filling(self, array: str) -> str:
        """Return a statement that sets rows after the last one to 0."""
        rest, width = self.rows % self.width, self.widths[array]
        if not rest:
            return ""
        last = entry(array, f"(m - 1) * {width} + j")
        fill = f"for (int j = 0; j < {width}; j++) {last} = filled_up({last}, {rest});"
        return f" if (first + m == {int(self.count)}) {fill}"

    @contextmanager
    def one_by_one(self) -> Iterator[list[str]]:
        """Write what follows, by another emitter, as statements on rows; its arrays are of rows."""
        lines, array = self.lines, self.array
        new: list[str] = []

        def rows_array(size: int) -> str:
            new.append(self.rows_array(size // self.count))
            return new[-1]

        collected: list[str] = []
        self.lines, self.array = collected, rows_array  # type: ignore[assignment,method-assign]
        try:
            yield new
        finally:
            self.lines, self.array = lines, array  # type: ignore[method-assign]
        body = " ".join([*collected, *(self._filling(name) for name in new)])
        self.lines.add(Statement(body))

    def loaded(self, number: int, shape: Shape) -> Value:
        """Load an input of tall matrices, ``(1, n, p)``."""
        array = self.rows_array(shape[-1])
        self.lines.append(
            f"load_rows({array}, inputs[{number}] + chain[0] * strides[{number}], {self.rows}, {shape[-1]});"
        )
        return self.rows_value(self.shape_of(shape, len(shape) - 2), len(shape) - 2, array)

    def unload(self, number: int, value: Value) -> None:
        """Store an output ``(..., n, p)``."""
        rows, shape = value.rows, value.shape
        assert rows is not None
        if any(n != 1 for n in shape[:rows]):
            raise UnsupportedOperatorError("tall matrices in an output with batches")
        size = self.rows * (value.size // self.count)
        array = self.stored(value).array
        to = f"outputs[{number}] + chain[0] * {size}"
        self.lines.append(f"store_rows({to}, {array}, {self.rows}, {value.size // self.count});")

    def laid_out(self, tensor: Tensor, rows: int) -> Value:
        """Return a constant with rows in lanes."""
        shape = self.shape_of(tensor.shape, rows)
        first = tensor.movedim(rows, 0).reshape(self.rows, -1)
        padded = torch.cat([first, first.new_zeros(int(self.count) * self.width - self.rows, first.shape[1])])
        width = first.shape[1]
        if (id(tensor), rows) not in self._laid_out:
            self._laid_out[id(tensor), rows] = f"k{len(self.numbers)}"
            self.numbers.append(padded.reshape(int(self.count), self.width, width).transpose(1, 2).contiguous())
        name = self._laid_out[id(tensor), rows]
        others = [d for d in range(len(shape)) if d != rows]
        lengths = (int(self.count), *(shape[d] for d in others))

        def at(index: Index) -> str:
            place = flat([Place(f"first + {index[rows]}"), *(index[d] for d in others)], lengths)
            return f"vector_at(&{entry(name, f'({place}) * {self.width}')})"

        return Value(shape, at, rows=rows, shared=True)

    # ---- sums over rows ------------------------------------------------------------------------------------------

    def summed(self, x: Value, dims: Sequence[int], keep: bool, scale: float = 1.0) -> Value:
        """Write a sum over dimensions, of which one is that of rows."""
        shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
        rows, row = x.rows, Place("r")
        within = tuple(n if d in dims and d != rows else 1 for d, n in enumerate(x.shape))
        array, size = self.array(math.prod(shape)), math.prod(shape)
        rest, last = self.rows % self.width, int(self.count) - 1

        def body(outer: Index) -> str:
            def add(index: Index) -> str:
                place = [row if d == rows else index[d] if d in dims else outer[d] for d in range(len(x.shape))]
                end = rest and x.computes
                fill = f" if (first + {row} == {last}) x = filled_up(x, {rest});" if end else ""
                return f"V x = {x.at(place)};{fill} y += x;"

            element = entry(array, flat(outer, shape))
            # A sum of its own for each row, so that the next row need not wait for this one.
            each = f"V y = spread(0); {self.for_each(within, add, 'c')} s += y;"
            return f"V s = {element}; for (int {row} = 0; {row} < m; {row}++) {{ {each} }} {element} = s;"

        clear = f"for (int i = 0; i < {size}; i++) {entry(array, 'i')} = spread(0);"
        end = f"{entry(array, 'i')} = total({entry(array, 'i')}) * spread({scale.hex()});"
        after = f"for (int i = 0; i < {size}; i++) {end}"
        self.lines.add(Statement(self.for_each(shape, body), clear, after, frozenset([array])))
        self.of_rows += x.size
        return self.value(shape if keep else tuple(n for d, n in enumerate(x.shape) if d not in dims), array)

    # ---- products ------------------------------------------------------------------------------------------------

    def inner_product(self, left: Value, right: Value, symmetric: bool) -> Value:
        """Write a product over rows, of ``(p, n)`` and ``(n, q)`` or a batch of such; only one half if symmetric."""
        left, right = self._cheap(left), self._cheap(right)
        *batch, p, _ = left.shape
        shape = (*batch, p, right.shape[-1])
        size, q = math.prod(shape), shape[-1]
        array = self.array(size)
        b, k = [Place("b") for _ in batch], Place("k")
        bodies = [
            self._inner_tile(left, right, array, shape, b, k, rows, columns, symmetric)
            for rows in cut(p, TILE)
            for columns in cut(q, TILE)
            if not (symmetric and rows[0] > columns[0])
        ]
        each = f"for (int b = 0; b < {math.prod(batch)}; b++) " if batch else ""
        clear = f"for (int i = 0; i < {size}; i++) {entry(array, 'i')} = spread(0);"
        after = f"for (int i = 0; i < {size}; i++) {entry(array, 'i')} = total({entry(array, 'i')});"
        if symmetric:
            here, there = (
                entry(array, flat([*b, *ij], shape)) for ij in ((Place("i"), Place("j")), (Place("j"), Place("i")))
            )
            after += f" {each}for (int i = 0; i < {p}; i++) for (int j = 0; j < i; j++) {here} = {there};"
        self.lines.add(Statement(f"{each}{{ {' '.join(bodies)} }}", clear, after, frozenset([array])))
        self.of_rows += size * self.count // (2 if symmetric else 1)
        return self.value(shape, array)

    def _inner_tile(self, left, right, array, shape, b, k, rows, columns, symmetric) -> str:  # type: ignore[no-untyped-def]
        (i0, (height, tall)), (j0, (width, wide)) = rows, columns
        row = [Place(f"i + {i0 + i}") for i in range(height)]
        column = [Place(f"j + {j0 + j}") for j in range(width)]
        lefts = "".join(f"V x{i} = {left.at([*b, row[i], k])}; " for i in range(height))
        rights = "".join(f"V y{j} = {right.at([*b, k, column[j]])}; " for j in range(width))
        tile = [(i, j) for i in range(height) for j in range(width)]
        place = {(i, j): entry(array, flat([*b, row[i], column[j]], shape)) for i, j in tile}
        starts = " ".join(f"V s{i}{j} = {place[i, j]};" for i, j in tile)
        sums = " ".join(f"s{i}{j} += x{i} * y{j};" for i, j in tile)
        stores = " ".join(f"{place[i, j]} = s{i}{j};" for i, j in tile)
        start = "i" if symmetric and i0 == j0 else "0"
        loops = f"for (int i = 0; i < {tall}; i += {height}) for (int j = {start}; j < {wide}; j += {width})"
        return f"{loops} {{ {starts} for (int k = 0; k < m; k++) {{ {lefts}{rights}{sums} }} {stores} }}"

    def outer_product(self, left: Value, right: Value) -> Value:
        """Write a product of ``(n, p)`` and ``(p, q)``, or a batch of such, row by row."""
        left = self._cheap(left)
        *batch, _, inner = left.shape
        shape = (*batch, self.count, right.shape[-1])
        array = self.rows_array(math.prod(batch) * shape[-1])
        result = self.rows_value(shape, len(batch), array)
        packed = self._packed_numbers(right)
        b = [Place("b") for _ in batch]
        bodies = []
        for columns in cut(shape[-1], TILE):
            for height in (TILE, 1):
                bodies.append(self._outer_tile(left, packed, result, b, inner, columns, height, right.shape))
        each = f"for (int b = 0; b < {math.prod(batch)}; b++) " if batch else ""
        before = packed[1]
        self.lines.add(Statement(f"{each}{{ {' '.join(bodies)} }}", before))
        self.of_rows += math.prod(shape) * inner
        return result

    def _outer_tile(self, left, packed, result, b, inner, columns, height, shape) -> str:  # type: ignore[no-untyped-def]
        j0, (width, wide) = columns
        row = [Place(f"i + {i}") for i in range(height)]
        column = [Place(f"j + {j0 + j}") for j in range(width)]
        k, tile = Place("k"), [(i, j) for i in range(height) for j in range(width)]
        starts = " ".join(f"V s{i}{j} = spread(0);" for i, j in tile)
        lefts = "".join(f"V x{i} = {left.at([*b, row[i], k])}; " for i in range(height))
        rights = "".join(
            f"V y{j} = spread({entry(packed[0], flat([*b, k, column[j]], shape))}); " for j in range(width)
        )
        sums = " ".join(f"s{i}{j} += x{i} * y{j};" for i, j in tile)
        stores = " ".join(f"{result.at([*b, row[i], column[j]])} = s{i}{j};" for i, j in tile)
        begin = "0" if height > 1 else f"m - m % {TILE}"
        loops = f"for (int i = {begin}; i + {height} <= m; i += {height}) for (int j = 0; j < {wide}; j += {width})"
        return f"{loops} {{ {starts} for (int k = 0; k < {inner}; k++) {{ {lefts}{rights}{sums} }} {stores} }}"

    def _packed_numbers(self, value: Value) -> tuple[str, str]:
        """Declare an array of the numbers of a value, and return its name and the statement that fills it."""
        self._packed += 1
        name = f"t{self._packed}"
        self.lines.append(f"PACKED({name}, {value.size});")
        fill = self.for_each(
            value.shape, lambda index: f"{name}_[{flat(index, value.shape)}] = LANE({value.at(index)}, 0);"
        )
        return name, fill

    def _cheap(self, value: Value) -> Value:
        return self.stored(value) if value.computes else value


TILE = 4
"""Rows and columns of a block of a product whose sums stay in registers."""
