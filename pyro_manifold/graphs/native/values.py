"""Where the numbers of a node stand, and how one of them is written in C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Shape = tuple[int, ...]
Index = Sequence[str]
"""An index into each dimension, as C writes it."""


class NotCoveredError(Exception):
    """What is not written in C, in words for a warning."""


class NotWorthItError(Exception):
    """What would be no faster in C."""


@dataclass(frozen=True)
class Value:
    """The value of a node, all chains of a vector side by side.

    Attributes:
        shape: of one chain.
        at: an element in C, by its index.
        array: name of the array that holds it row by row; None if it is a view, a constant or not computed yet.
        computes: whether an element costs arithmetic each time that it is read.
        constant: what it is, if it is known now.
        shared: whether it is the same for all chains.
    """

    shape: Shape
    at: Callable[[Index], str]
    array: str | None = None
    computes: bool = False
    constant: Tensor | None = None
    shared: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def broadcast(self, shape: Shape) -> Value:
        """The view that repeats dimensions of size 1."""
        if shape == self.shape:
            return self
        skipped = len(shape) - len(self.shape)
        single = [n == 1 for n in self.shape]

        def at(index: Index) -> str:
            own = zip(single, index[skipped:], strict=True)
            return self.at(["0" if repeated else i for repeated, i in own])

        return Value(shape, at, computes=self.computes, shared=self.shared)

    def viewed(self, shape: Shape, index_of: Callable[[Index], Index]) -> Value:
        """Another shape, whose elements are found by this map of indices."""
        return Value(shape, lambda index: self.at(index_of(index)), computes=self.computes, shared=self.shared)


def number(value: float | bool) -> Value:
    """A number, the same in all lanes."""
    return Value((), lambda _: f"spread({literal(value)})")


def literal(value: float | bool) -> str:
    """A number in C, to its last bit."""
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return str(int(value)) if value.is_integer() and 0 < abs(value) < 1e6 else value.hex()


def flat(index: Index, shape: Shape) -> str:
    """Position of an element in an array, row by row."""
    terms, stride = [], 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        if i != "0" and n != 1:
            terms.append(i if stride == 1 else f"{_factor(i)} * {stride}")
        stride *= n
    return " + ".join(reversed(terms)) or "0"


def shifted(index: str, offset: int) -> str:
    """An index so many places on."""
    if not offset:
        return index
    return (
        str(int(index) + offset) if index.isdigit() else f"{index} + {offset}" if offset > 0 else f"{index} - {-offset}"
    )


def strided(index: str, step: int) -> str:
    """An index in steps."""
    return index if step == 1 else f"{_factor(index)} * {step}"


def _factor(index: str) -> str:
    return index if index.isidentifier() or index.isdigit() else f"({index})"


def same_but_for_ones(source: Shape, target: Shape) -> Callable[[Index], Index] | None:
    """Indices of ``target`` to those of ``source``, if the two differ by dimensions of size 1; None if by more."""
    if [n for n in source if n != 1] != [n for n in target if n != 1]:
        return None
    kept = [k for k, n in enumerate(target) if n != 1]

    def index_of(index: Index) -> Index:
        moving = iter(kept)
        return ["0" if n == 1 else index[next(moving)] for n in source]

    return index_of
