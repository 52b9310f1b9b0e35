"""Builder of the text of a C function: arrays, loops over their elements, constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pyro_manifold.compiled.native.values import (
    FIRST,
    Index,
    Place,
    Shape,
    Value,
    entry,
    flat,
    literal,
    same_but_for_ones,
)

_LARGEST_ON_THE_STACK = 512  # vectors of an array
_LARGEST_OF_ALL = 2**14
"""Vectors of all arrays on the stack, up to one megabyte: a thread may have two, and an overflow ends the process."""

_LARGEST_IN_SOURCE = 1  # entries of a constant; larger ones are passed, so that new data need no compilation

COST_OF_AN_ELEMENT = 4
"""Cost of an elementwise expression: 1.0 to 1.8 ns, where a multiplication and addition in a product of matrices take
0.35 ns, in the posteriors of ``benchmarks.problems.published``."""


class Writer:
    """Lines of C, and the constants that they need.

    Attributes:
        lines: statements so far.
        numbers: constants of the models' dtype, passed as ``k0, k1, …``.
        indices: integer constants, passed as ``j0, j1, …``.
        elements: number of vectors of lanes in the arrays.
        arithmetic: approximate cost, in multiplications and additions within a product of matrices.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[Tensor] = []
        self.indices: list[Tensor] = []
        self.elements = 0
        self.arithmetic = 0
        self._arrays = self._on_the_stack = 0

    def array(self, size: int) -> str:
        """Declare a new array of so many vectors, and return its name."""
        self._arrays += 1
        self.elements += size
        name = f"a{self._arrays}"
        fits = size <= _LARGEST_ON_THE_STACK and self._on_the_stack + size <= _LARGEST_OF_ALL
        self._on_the_stack += size if fits else 0
        self.lines.append(f"{'ARRAY' if fits else 'LARGE_ARRAY'}({name}, {size});")
        return name

    def value(self, shape: Shape, array: str) -> Value:
        """Return an array as a row-major value."""
        return Value(shape, lambda index: entry(array, flat(index, shape)), array=array)

    def for_each(self, shape: Shape, body: Callable[[Index], str], letter: str = "i") -> str:
        """Return loops over all elements of a shape."""
        index = [FIRST if n == 1 else Place(f"{letter}{k}") for k, n in enumerate(shape)]
        loops = [f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(index, shape, strict=True) if i != FIRST]
        return " ".join([*loops, "{", body(index), "}"])

    def filled(self, shape: Shape, element: Callable[[Index], str]) -> Value:
        """Write an expression for each element to a new array."""
        size = math.prod(shape)
        array = self.array(size)
        self.arithmetic += COST_OF_AN_ELEMENT * size
        self.lines.append(self.for_each(shape, lambda index: f"{entry(array, flat(index, shape))} = {element(index)};"))
        return self.value(shape, array)

    def stored(self, value: Value) -> Value:
        """Store a value in an array, unless it is in one."""
        return value if value.array is not None else replace(self.filled(value.shape, value.at), shared=value.shared)

    def copied(self, value: Value) -> Value:
        """Copy a value to a new array, to be changed."""
        return self.filled(value.shape, value.at)

    def cheap(self, value: Value) -> Value:
        """Return the value in a form whose elements are cheap to read many times."""
        return self.stored(value) if value.computes else value

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """Return the same elements in the same order with another shape."""
        index_of = same_but_for_ones(value.shape, shape)
        if value.array is None and index_of is not None:
            return value.viewed(shape, index_of)
        array = self.stored(value).array
        assert array is not None
        return replace(self.value(shape, array), shared=value.shared)

    def constant(self, tensor: Tensor) -> Value:
        """Return a constant as a value, the same for all chains."""
        shape = tuple(tensor.shape)
        if tensor.numel() <= _LARGEST_IN_SOURCE:
            written = f"spread({literal(tensor.item())})" if tensor.numel() else "spread(0)"
            return Value(shape, lambda _: written, constant=tensor, shared=True)
        name: list[str] = []

        def at(index: Index) -> str:
            if not name:  # passed as an array of numbers only if it is read as such
                name.append(f"k{len(self.numbers)}")
                self.numbers.append(tensor)
            return f"spread({entry(name[0], flat(index, shape))})"

        return Value(shape, at, constant=tensor, shared=True)

    def integers(self, tensor: Tensor) -> Callable[[Index], Place]:
        """Return elements of an integer constant, as C integers."""
        shape = tuple(tensor.shape)
        name = f"j{len(self.indices)}"
        self.indices.append(tensor.to(torch.int64))
        return lambda index: Place(entry(name, flat(index, shape)))
