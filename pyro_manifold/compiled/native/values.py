"""Values of nodes: the position of their entries in memory, and the C expression of an entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Shape = tuple[int, ...]


class Place(str):
    """An integer expression in C that may be put into any other expression: a name, a numeral, or one in brackets.

    Indices are composed by `shifted`, `strided` and ``Place(f"{n} - {i}")``: brackets keep the meaning for any
    expression inside.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Place:
        whole = isinstance(text, cls) or text.isidentifier() or text.isdigit()
        return super().__new__(cls, text if whole else f"({text})")


FIRST = Place("0")

Index = Sequence[Place]
"""A `Place` in each dimension."""


class UnsupportedOperatorError(Exception):
    """Error for an operator that cannot be written in C; the message is for a warning."""


class NoSpeedupError(Exception):
    """Error if native code would be no faster."""


@dataclass(frozen=True)
class Value:
    """The value of a node, for all chains of a vector.

    Attributes:
        shape: shape for one chain.
        at: function from an index to the C expression of that element.
        array: name of the array that holds it in row-major order; None for a view, a constant or an inlined expression.
        computes: whether reading an element costs arithmetic each time.
        constant: the tensor, if the value is a constant.
        shared: whether it is the same for all chains.
        depth: number of values whose expressions are nested in that of an element, which Python reaches by recursion.
        rows: dimension along which lanes are consecutive rows, in the layout of `RowsWriter`; its size in ``shape`` is
            a number of vectors. None if the lanes of a vector are different chains, or equal.
    """

    shape: Shape
    at: Callable[[Index], str]
    array: str | None = None
    computes: bool = False
    constant: Tensor | None = None
    shared: bool = False
    depth: int = 0
    rows: int | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def broadcast(self, shape: Shape) -> Value:
        """Return the view that repeats dimensions of size 1."""
        if shape == self.shape:
            return self
        skipped = len(shape) - len(self.shape)
        single = [n == 1 for n in self.shape]

        def at(index: Index) -> str:
            own = zip(single, index[skipped:], strict=True)
            return self.at([FIRST if repeated else i for repeated, i in own])

        return Value(shape, at, computes=self.computes, shared=self.shared, depth=self.depth + 1)

    def viewed(self, shape: Shape, index_of: Callable[[Index], Index]) -> Value:
        """Return a view of another shape, by a map of indices."""

        def at(index: Index) -> str:
            return self.at(index_of(index))

        return Value(shape, at, computes=self.computes, shared=self.shared, depth=self.depth + 1)


def number(value: float | bool) -> Value:
    """Return a constant number, the same in all lanes."""
    return Value((), lambda _: f"spread({literal(value)})")


def literal(value: float | bool) -> str:
    """Return a C literal of a number, exact to the last bit."""
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return str(int(value)) if value.is_integer() and 0 < abs(value) < 1e6 else value.hex()


def entry(array: str, place: str) -> str:
    """Return the element at a place of an array; a checked build checks the bounds."""
    return f"AT({array}, {place})"


def flat(index: Index, shape: Shape) -> str:
    """Return the row-major place of an element in an array; a sum, which only a `Place` brackets."""
    terms, stride = [], 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        if n != 1 and i != "0":
            terms.append(i if stride == 1 else f"{i} * {stride}")
        stride *= n
    return " + ".join(reversed(terms)) or "0"


def stepped(index: Index, strides: Sequence[int], first: int = 0) -> str:
    """Return the place of an element in an array with strides; a sum, which only a `Place` brackets."""
    terms = [f"{i} * {stride}" for i, stride in zip(index, strides, strict=True) if stride and i != "0"]
    return " + ".join([*terms, str(first)] if first or not terms else terms)


def shifted(index: Place, offset: int) -> Place:
    """Return a place plus an offset."""
    if index.isdigit() and int(index) + offset >= 0:
        return Place(str(int(index) + offset))
    return index if not offset else Place(f"{index} + {offset}" if offset > 0 else f"{index} - {-offset}")


def strided(index: Place, step: int) -> Place:
    """Return a place times a step."""
    return index if step == 1 else Place(f"{index} * {step}")


def same_but_for_ones(source: Shape, target: Shape) -> Callable[[Index], Index] | None:
    """Return a map from indices of ``target`` to those of ``source`` if they differ by sizes of 1; else None."""
    if [n for n in source if n != 1] != [n for n in target if n != 1]:
        return None
    kept = [k for k, n in enumerate(target) if n != 1]

    def index_of(index: Index) -> Index:
        moving = iter(kept)
        return [FIRST if n == 1 else index[next(moving)] for n in source]

    return index_of
