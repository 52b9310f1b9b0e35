"""A compiled loop of many chains in one call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.native.compiler import compiled, is_checked
from pyro_manifold.compiled.native.emit import Loop, Source, source_of
from pyro_manifold.compiled.native.row_programs import rows_source_of
from pyro_manifold.compiled.native.values import NoSpeedupError, Shape, UnsupportedOperatorError

_VECTOR_BYTES = 64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32
_LARGEST_ARRAYS = 2**25
"""Bytes of all arrays of one vector of chains. Native code is 1.2 to 6 times as fast as torch up to this size, since
results stay in the cache, and about as fast at twice the size, where both are bound by memory."""

_LARGEST_ARRAYS_OF_SUMS = 2**26
"""The same where outputs are summed over chains: the graph of many chains writes all of its values to memory, and takes
2 to 3 times as long at 33 megabytes (the horseshoe regression of ``benchmarks.accuracy.guides.equal_time``)."""

_LARGEST_STEP = 4_000_000
"""Operations of one chain in a step: beyond that, products take most of the time, and matrix libraries are better."""

_CHAINS_IN_LANES = 1.5
"""Cost of an operation with chains in lanes relative to one with rows in lanes: arrays are as many times as large as
there are lanes, and leave the cache. Measured on V(200,5), V(200,10) and V(100,10)."""

_LARGEST_ARRAYS_BY_ROWS = 2**28
"""Bytes of all arrays, where lanes are along rows: loops over chunks of rows need each array once."""

_NUMBER, _PLACE = ctypes.c_int64, ctypes.c_void_p
_LANES_IN_ESTIMATES = 4  # for any processor, so that estimates are the same on all
_OPERATIONS_OF_A_CALL = 300_000
"""Operations on vectors that take as long as an iteration does in Python: 0.35 ns each, and 100 µs."""


def lanes(chains: int, dtype: torch.dtype) -> int:
    """Return the number of chains in a vector: a power of two, up to the vector width of the processor."""
    width = 1
    while width < min(chains, _VECTOR_BYTES // dtype.itemsize):
        width *= 2
    return width


class OutsideArrayError(BaseException):
    """Error of a checked build whose compiled code accessed memory outside an array.

    It is not an `Exception`, since these are caught to continue without native code.
    """


class NativeLoop:
    """A compiled `Loop`, for any number of steps.

    Args:
        loop: graphs of one chain.
        example: an example of each input, ``(chains or 1, ...)``, for shapes and dtype.
        chains: number of chains.

    Raises:
        UnsupportedOperatorError: if the graphs have operators that cannot be written in C.
        NoSpeedupError: if they are so large that native code would not be faster.
        NoCompilerError: if there is no compiler, or it fails.

    With ``PYRO_MANIFOLD_CHECKED=1`` in the environment a call raises `OutsideArrayError` if the code, a few times
    slower then, accesses memory outside an array.
    """

    def __init__(self, loop: Loop, example: Sequence[Tensor], chains: int) -> None:
        self.loop, self._dtype, self._chains = loop, example[0].dtype, chains
        if any(value.dtype != self._dtype or value.device.type != "cpu" for value in example):
            raise UnsupportedOperatorError("inputs of several dtypes, or on another device")
        shapes: list[Shape] = [(1, *value.shape[1:]) for value in example]
        self._dimensions = [len(shape) for shape in shapes]
        self._sizes = [math.prod(shape) for shape in shapes]
        width, self.source = _source_of(loop, shapes, self._dtype, chains)
        shapes_of_chain = [shape[1:] for shape in self.source.shapes]
        self._shapes = [
            shape if number in loop.summed else (chains, *shape) for number, shape in enumerate(shapes_of_chain)
        ]
        self._checked = is_checked()
        self._library = compiled(self.source.text, width, self._checked)
        self._run = self._library.run
        self._run.restype = None
        self._run.argtypes = [_NUMBER] * 2 + [_PLACE] * 5
        self._chain = self._library.chain
        self._chain.restype = None
        self._chain.argtypes = [_NUMBER, _NUMBER, _PLACE, _NUMBER, *[_PLACE] * 4, _NUMBER, *[_PLACE] * 4]
        self._constants = [
            [value.to(self._dtype).contiguous() for value in self.source.numbers],
            [value.contiguous() for value in self.source.indices],
        ]
        self._constant_pointers = [_pointers(values) for values in self._constants]
        self._strides_of: dict[tuple[int, ...], ctypes.Array[ctypes.c_int64]] = {}

    @property
    def steps_of_a_call(self) -> float:
        """Estimate the number of steps that take as long as the overhead of a call, from the operations of a step."""
        vectors = self._chains if self.source.by_rows else math.ceil(self._chains / _LANES_IN_ESTIMATES)
        return 1 + _OPERATIONS_OF_A_CALL / max(1, self.source.arithmetic * vectors)

    def __call__(self, steps: int, *inputs: Tensor) -> list[Tensor]:
        """Return the outputs, ``(chains, ...)``, or ``(...)`` for those that are summed over chains.

        Args:
            steps: number of steps.
            *inputs: inputs with the shapes of the example; each may be shared by all chains or not, as in the example
                or otherwise.

        Raises:
            ValueError: for another number of inputs, sizes or dtype than in the example, or negative ``steps``.
        """
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(f"steps={steps!r} of a compiled loop, expected an integer ≥ 0.")
        try:
            inputs = tuple(value if value.is_contiguous() else value.contiguous() for value in inputs)
            self._check_inputs(inputs)
            strides = self._strides(inputs)
        except (AttributeError, IndexError):  # a check of its own would cost as much as a small loop
            check_rows("a compiled loop", inputs)
            raise
        outputs = self._empty()
        if self._chains:
            self._run(self._chains, steps, _pointers(inputs), strides, _pointers(outputs), *self._constant_pointers)
            self._check_accesses()
        return outputs

    def bound(self, steps: int, inputs: Sequence[Tensor]) -> tuple[Callable[[], None], list[Tensor]]:
        """Return a call without arguments that reads this memory, and the outputs that it writes.

        The values of the inputs may be changed in place between calls; each call overwrites the outputs.

        Args:
            steps: number of steps.
            inputs: contiguous inputs, as in a call.
        """
        sizes = [math.prod(shape) for shape in self._shapes]
        memory = torch.zeros(sum(sizes), dtype=self._dtype)
        outputs = [part.view(shape) for part, shape in zip(memory.split(sizes), self._shapes, strict=True)]
        pointers = _pointers(inputs), self._strides(inputs), _pointers(outputs), *self._constant_pointers

        def call() -> None:
            if self._checked:
                self._check_inputs(inputs)  # a reference, which also keeps their memory
            memory.zero_()
            self._run(self._chains, steps, *pointers)
            self._check_accesses()

        if not all(value.is_contiguous() for value in inputs):
            raise ValueError("inputs to be bound must be contiguous")
        return call, outputs

    def iterate(self, steps: Sequence[int], inputs: Sequence[Tensor], fed: Mapping[int, int]) -> list[Tensor]:
        """Run several loops in one call and return the outputs of each, ``(loops, chains, ...)``.

        Args:
            steps: number of steps of each loop.
            inputs: as in a call; with one more dimension in front, a row for each loop.
            fed: ``{index of an input: index of the output}`` of the loop before that replaces it, from the second loop
                on.
        """
        loops = len(steps)
        inputs = [value.contiguous() for value in inputs]
        by_loop = [value.dim() > dimensions for value, dimensions in zip(inputs, self._dimensions, strict=True)]
        outputs = self._empty((loops,))
        if not self._chains or not loops:
            return outputs
        of_one = [value[0] if each else value for value, each in zip(inputs, by_loop, strict=True)]
        rows = [value.numel() if each else 0 for value, each in zip(of_one, by_loop, strict=True)]
        self._check_inputs(of_one)
        self._chain(
            *(self._chains, loops, _integers(steps), len(inputs), _pointers(inputs), self._strides(of_one)),
            *(_integers(rows), _integers([fed.get(k, -1) for k in range(len(inputs))]), len(outputs)),
            *(_pointers(outputs), _integers([value[0].numel() for value in outputs]), *self._constant_pointers),
        )
        self._check_accesses()
        return outputs

    def _empty(self, front: Shape = ()) -> list[Tensor]:
        """Return memory for the outputs; zeros for sums, which the code adds to."""
        return [
            torch.zeros(size, dtype=self._dtype) if number in self.loop.summed else torch.empty(size, dtype=self._dtype)
            for number, size in enumerate((*front, *shape) for shape in self._shapes)
        ]

    def _check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Raise ValueError if an input has another size than the example; OutsideArrayError in a checked build."""
        if len(inputs) != len(self._sizes):
            raise ValueError(
                f"a compiled loop has {len(inputs)} inputs, expected {len(self._sizes)} as in its example."
            )
        for number, (value, size) in enumerate(zip(inputs, self._sizes, strict=True)):
            if value.dtype != self._dtype or value.numel() not in (size, size * self._chains):
                raise (OutsideArrayError if self._checked else ValueError)(
                    f"input {number} of a compiled loop has shape {tuple(value.shape)} and {value.dtype}, expected "
                    f"{size} numbers, or those of each of {self._chains} chains, of {self._dtype}."
                )

    def _check_accesses(self) -> None:
        """Raise OutsideArrayError in a checked build if the last call accessed memory outside an array."""
        if self._checked:
            self._library.fault.restype = ctypes.c_char_p
            if fault := self._library.fault():
                raise OutsideArrayError(fault.decode())

    def _strides(self, inputs: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
        """Return the number of entries from one chain to the next in each input; 0 if all chains share them."""
        lengths = tuple([value.size(0) for value in inputs])  # twice as fast as len
        if lengths not in self._strides_of:
            strides = [value[0].numel() if value.size(0) == self._chains else 0 for value in inputs]
            self._strides_of[lengths] = (ctypes.c_int64 * len(inputs))(*strides)
        return self._strides_of[lengths]


def check_rows(name: str, values: Sequence[Any]) -> None:
    """Raise ValueError for a value that is no tensor with a dimension of chains."""
    for number, value in enumerate(values):
        if not isinstance(value, Tensor) or not value.dim():
            raise ValueError(
                f"{name}: input {number} is {value!r}, expected a tensor (chains or 1, ...), as is torch.tensor([0.1])."
            )


def _source_of(loop: Loop, shapes: Sequence[Shape], dtype: torch.dtype, chains: int) -> tuple[int, Source]:
    """Return number of lanes and source: lanes along rows of tall matrices if that costs less, else along chains."""
    full, width = _VECTOR_BYTES // dtype.itemsize, lanes(chains, dtype)
    largest = _LARGEST_ARRAYS_OF_SUMS if loop.summed else _LARGEST_ARRAYS
    by_rows = None if loop.summed else _by_rows(loop, shapes, dtype, full)
    try:
        source = source_of(loop, shapes, dtype)
        _check_size(source, width * dtype.itemsize, largest)
    except (UnsupportedOperatorError, NoSpeedupError):
        if by_rows is None:
            raise
        return full, by_rows
    others = _CHAINS_IN_LANES * source.arithmetic * math.ceil(chains / width)
    return (full, by_rows) if by_rows is not None and by_rows.arithmetic * chains <= others else (width, source)


def _by_rows(loop: Loop, shapes: Sequence[Shape], dtype: torch.dtype, width: int) -> Source | None:
    """Return the source with lanes along rows; None if there is none, or if matrix libraries are better."""
    try:
        source = rows_source_of(loop, shapes, dtype, width)
    except UnsupportedOperatorError:
        return None
    small = source.arithmetic - source.of_rows <= _LARGEST_STEP
    return source if small and source.elements * width * dtype.itemsize <= _LARGEST_ARRAYS_BY_ROWS else None


def _check_size(source: Source, bytes_of_a_vector: int, largest: int) -> None:
    if source.elements * bytes_of_a_vector > largest or source.arithmetic > _LARGEST_STEP:
        raise NoSpeedupError("its arrays or products are so large that matrix libraries are faster")


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _pointers(values: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*[value.data_ptr() for value in values])
