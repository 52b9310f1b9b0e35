"""A loop of many chains in one call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.graphs.native.compiler import compiled
from pyro_manifold.graphs.native.emit import Loop, Source, source_of
from pyro_manifold.graphs.native.values import NotCoveredError, NotWorthItError, Shape

_VECTOR_BYTES = 64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32
_LARGEST_ARRAYS = 2**25
"""Bytes of all arrays of one vector of chains. Beyond a core's cache operators are bound by memory, here and in torch,
and what one loop computes need not be read again by the next: 1.2 to 6 times faster up to here, about even at twice."""

_LARGEST_STEP = 4_000_000
"""Operations of one chain in a step: beyond that, products take most of the time, and matrix libraries are better."""

_NUMBER, _PLACE = ctypes.c_int64, ctypes.c_void_p
_LANES_IN_ESTIMATES = 4  # of any processor, so that what is estimated is the same on all
_OPERATIONS_OF_A_CALL = 300_000
"""Vector operations that take as long as what surrounds a call in Python: 0.35 ns each, and 100 µs."""


def lanes(chains: int, dtype: torch.dtype) -> int:
    """How many chains go side by side: a power of two, up to a vector of the processor."""
    width = 1
    while width < min(chains, _VECTOR_BYTES // dtype.itemsize):
        width *= 2
    return width


class NativeLoop:
    """A compiled `Loop`, for any number of steps.

    Args:
        loop: its graphs, of one chain.
        example: an input each, ``(chains or 1, ...)``, for shapes and dtype.
        chains: how many chains.

    Raises:
        NotCoveredError: if the graphs hold what is not written in C.
        NotWorthItError: if they are so large that it would not pay.
        NoCompilerError: if there is no compiler, or it fails.
    """

    def __init__(self, loop: Loop, example: Sequence[Tensor], chains: int) -> None:
        self._dtype, self._chains = example[0].dtype, chains
        if any(value.dtype != self._dtype or value.device.type != "cpu" for value in example):
            raise NotCoveredError("inputs of several dtypes, or on another device")
        shapes: list[Shape] = [(1, *value.shape[1:]) for value in example]
        self._dimensions = [len(shape) for shape in shapes]
        self.source = source_of(loop, shapes, self._dtype)
        width = lanes(chains, self._dtype)
        _check_size(self.source, width * self._dtype.itemsize)
        self._shapes = [(chains, *shape[1:]) for shape in self.source.shapes]
        self._library = compiled(self.source.text, width)
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
        """How many steps take as long as a call without any, by the number of operations of a step."""
        vectors = math.ceil(self._chains / _LANES_IN_ESTIMATES)
        return 1 + _OPERATIONS_OF_A_CALL / max(1, self.source.arithmetic * vectors)

    def __call__(self, steps: int, *inputs: Tensor) -> list[Tensor]:
        """The outputs, ``(chains, ...)``.

        Args:
            steps: how many.
            *inputs: of the shapes of the example; what all chains share there may differ here, and the reverse.
        """
        inputs = tuple(value if value.is_contiguous() else value.contiguous() for value in inputs)
        outputs = [torch.empty(shape, dtype=self._dtype) for shape in self._shapes]
        if self._chains:
            given, taken = _pointers(inputs), _pointers(outputs)
            self._run(self._chains, steps, given, self._strides(inputs), taken, *self._constant_pointers)
        return outputs

    def several(self, steps: Sequence[int], inputs: Sequence[Tensor], fed: Mapping[int, int]) -> list[Tensor]:
        """Loop after loop in one call: the outputs of each, ``(loops, chains, ...)``.

        Args:
            steps: of each loop.
            inputs: as in a call; with one more dimension in front, a row for each loop.
            fed: ``{number of an input: number of the output}`` of the loop before that it is, from the second loop on.
        """
        loops = len(steps)
        inputs = [value.contiguous() for value in inputs]
        by_loop = [value.dim() > dimensions for value, dimensions in zip(inputs, self._dimensions, strict=True)]
        outputs = [torch.empty((loops, *shape), dtype=self._dtype) for shape in self._shapes]
        if not self._chains or not loops:
            return outputs
        of_one = [value[0] if each else value for value, each in zip(inputs, by_loop, strict=True)]
        rows = [value.numel() if each else 0 for value, each in zip(of_one, by_loop, strict=True)]
        self._chain(
            *(self._chains, loops, _integers(steps), len(inputs), _pointers(inputs), self._strides(of_one)),
            *(_integers(rows), _integers([fed.get(k, -1) for k in range(len(inputs))]), len(outputs)),
            *(_pointers(outputs), _integers([value[0].numel() for value in outputs]), *self._constant_pointers),
        )
        return outputs

    def _strides(self, inputs: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
        """Numbers from one chain to the next, in each input; none where all chains share them."""
        lengths = tuple([value.size(0) for value in inputs])  # twice as fast as len
        if lengths not in self._strides_of:
            strides = [value[0].numel() if value.size(0) == self._chains else 0 for value in inputs]
            self._strides_of[lengths] = (ctypes.c_int64 * len(inputs))(*strides)
        return self._strides_of[lengths]


def _check_size(source: Source, bytes_of_a_vector: int) -> None:
    if source.elements * bytes_of_a_vector > _LARGEST_ARRAYS or source.arithmetic > _LARGEST_STEP:
        raise NotWorthItError("its arrays or products are large, which matrix libraries do better")


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _pointers(values: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*[value.data_ptr() for value in values])
