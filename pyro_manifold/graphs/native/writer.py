"""The text of a C function as it grows: arrays, loops over their elements, constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pyro_manifold.graphs.native.values import Index, Shape, Value, flat, literal, same_but_for_ones

_LARGEST_ON_THE_STACK = 512  # vectors of an array
_LARGEST_OF_ALL = 2**14
"""Vectors of all arrays there, up to one megabyte: a thread may have two, and beyond its stack the process ends."""

_LARGEST_IN_SOURCE = 1  # a constant; others are passed, so that other data of the same shape need no compiler


class Writer:
    """Lines of C, and what they need from outside.

    Attributes:
        lines: statements so far.
        numbers: constants of the models' dtype, passed as ``k0, k1, …``.
        indices: constants of integers, passed as ``j0, j1, …``.
        elements: how many vectors of lanes the arrays hold.
        arithmetic: about how many operations on vectors there are.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[Tensor] = []
        self.indices: list[Tensor] = []
        self.elements = 0
        self.arithmetic = 0
        self._arrays = self._on_the_stack = 0

    def array(self, size: int) -> str:
        """A new array of so many vectors."""
        self._arrays += 1
        self.elements += size
        name = f"a{self._arrays}"
        fits = size <= _LARGEST_ON_THE_STACK and self._on_the_stack + size <= _LARGEST_OF_ALL
        self._on_the_stack += size if fits else 0
        where = "" if fits else "static _Thread_local "
        self.lines.append(f"{where}V {name}[{max(size, 1)}];")
        return name

    def value(self, shape: Shape, array: str) -> Value:
        """What stands in an array row by row."""
        return Value(shape, lambda index: f"{array}[{flat(index, shape)}]", array=array)

    def for_each(self, shape: Shape, body: Callable[[Index], str], letter: str = "i") -> str:
        """Loops over all elements of a shape."""
        index = ["0" if n == 1 else f"{letter}{k}" for k, n in enumerate(shape)]
        loops = [f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(index, shape, strict=True) if i != "0"]
        return " ".join([*loops, "{", body(index), "}"])

    def filled(self, shape: Shape, element: Callable[[Index], str]) -> Value:
        """An array with an expression for each element."""
        size = math.prod(shape)
        array = self.array(size)
        self.arithmetic += size
        self.lines.append(self.for_each(shape, lambda index: f"{array}[{flat(index, shape)}] = {element(index)};"))
        return self.value(shape, array)

    def stored(self, value: Value) -> Value:
        """The same in an array; an array is left as it is."""
        return value if value.array is not None else replace(self.filled(value.shape, value.at), shared=value.shared)

    def copied(self, value: Value) -> Value:
        """The same in an array of its own, to be changed."""
        return self.filled(value.shape, value.at)

    def cheap(self, value: Value) -> Value:
        """The same, so that elements may be read many times."""
        return self.stored(value) if value.computes else value

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """The same elements in the same order."""
        index_of = same_but_for_ones(value.shape, shape)
        if value.array is None and index_of is not None:
            return value.viewed(shape, index_of)
        array = self.stored(value).array
        assert array is not None
        return replace(self.value(shape, array), shared=value.shared)

    def constant(self, tensor: Tensor) -> Value:
        """What is the same for all chains."""
        shape = tuple(tensor.shape)
        if tensor.numel() <= _LARGEST_IN_SOURCE:
            written = f"spread({literal(tensor.item())})" if tensor.numel() else "spread(0)"
            return Value(shape, lambda _: written, constant=tensor, shared=True)
        name: list[str] = []

        def at(index: Index) -> str:
            if not name:  # only those that are read as numbers are passed as such
                name.append(f"k{len(self.numbers)}")
                self.numbers.append(tensor)
            return f"spread({name[0]}[{flat(index, shape)}])"

        return Value(shape, at, constant=tensor, shared=True)

    def whole_numbers(self, tensor: Tensor) -> Callable[[Index], str]:
        """Elements of a constant of integers, as C's integers."""
        shape = tuple(tensor.shape)
        name = f"j{len(self.indices)}"
        self.indices.append(tensor.to(torch.int64))
        return lambda index: f"{name}[{flat(index, shape)}]"
