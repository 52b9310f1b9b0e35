"""Pooling, resizing and padding: weighted sums along one dimension after the other, and maxima of windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pyro_manifold.compiled.tracing import unrecorded

_ATEN = torch.ops.aten

Along = Callable[[Tensor], Tensor]
"""A linear function of rows ``(k, 1, n)``, applied to each row independently."""


def _applied(x: Tensor, functions: Sequence[Along]) -> Tensor:
    """Apply a linear function along each of the last dimensions."""
    for dim, function in enumerate(functions, -len(functions)):
        x = _summed(x, dim, *_weights(function, x.shape[dim], x))
    return x


def _transposed(gradient: Tensor, functions: Sequence[Along], sizes: Sequence[int]) -> Tensor:
    """Apply the transpose of a linear function along each of the last dimensions, which had these sizes before."""
    for dim, (function, size) in enumerate(zip(functions, sizes, strict=True), -len(functions)):
        source, target, weights, _ = _weights(function, size, gradient)
        gradient = _summed(gradient, dim, target, source, weights, size)
    return gradient


def _weights(function: Along, size: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the matrix of a linear function, sparse: source and target indices, weights, and the number of targets."""
    with unrecorded():
        matrix = function(torch.eye(size, dtype=like.dtype, device=like.device).unsqueeze(1)).squeeze(1)
        source, target = matrix.nonzero().t().contiguous()
        return source, target, matrix[source, target], matrix.shape[1]


def _summed(x: Tensor, dim: int, source: Tensor, target: Tensor, weights: Tensor, length: int) -> Tensor:
    """Multiply entries of x along a dimension by weights, and add each to its target."""
    shape = list(x.shape)
    shape[dim] = length
    terms = x.index_select(dim, source) * weights.reshape(-1, *[1] * (-dim - 1))
    return x.new_zeros(shape).index_add(dim, target, terms)


def _of_dimension(option: Sequence[int], dim: int, otherwise: Sequence[int] = ()) -> int:
    """Return the option for a dimension, from one number for each dimension, one for all, or none."""
    given = option or otherwise
    return given[dim] if len(given) > 1 else given[0]


# ---- averages ----------------------------------------------------------------------------------------------------


def _averages(
    spatial: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> list[Along]:
    """Return averages of windows along each dimension, from the options of ``avg_pool2d``."""

    def along(dim: int) -> Along:
        size, step = _of_dimension(kernel, dim), _of_dimension(stride, dim, kernel)
        options = ((size, 1), (step, 1), (_of_dimension(padding, dim), 0), ceil_mode, count_include_pad)
        own = None if divisor is None else 1 if dim else divisor
        return lambda rows: functional.avg_pool2d(rows.unsqueeze(-1), *options, own).squeeze(-1)

    return [along(dim) for dim in range(spatial)]


def _average_pool(spatial: int) -> Callable[..., Tensor]:
    return lambda x, *options: _applied(x, _averages(spatial, *options))


def _average_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda gradient, x, *options: _transposed(gradient, _averages(spatial, *options), x.shape[-spatial:])


def _adaptive_averages(sizes: Sequence[int]) -> list[Along]:
    def along(size: int) -> Along:
        return lambda rows: functional.adaptive_avg_pool1d(rows, size)

    return [along(size) for size in sizes]


def _adaptive_average_pool(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return _applied(x, _adaptive_averages(sizes))


def _adaptive_average_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda gradient, x: _transposed(gradient, _adaptive_averages(gradient.shape[-spatial:]), x.shape[-spatial:])


# ---- other sizes -------------------------------------------------------------------------------------------------


def _resized(operator: str, sizes: Sequence[int], *options: Any) -> list[Along]:
    """Return the resizing along each dimension, by the operator for all: that of one dimension may round differently.

    Args:
        operator: name of the operator.
        sizes: sizes of the result.
        *options: whether corners are aligned, for operators that have such an option; then a scale for each dimension.
    """
    aligned, scales = [x for x in options if isinstance(x, bool)], [x for x in options if not isinstance(x, bool)]
    scales += [None] * (len(sizes) - len(scales))

    def along(dim: int) -> Along:
        others = [1] * len(sizes)
        size, scale = [*others], [None] * len(sizes)
        size[dim], scale[dim] = sizes[dim], scales[dim]

        def function(rows: Tensor) -> Tensor:
            before = [*others]
            before[dim] = rows.shape[-1]
            resized: Tensor = getattr(_ATEN, operator)(rows.reshape(-1, 1, *before), size, *aligned, *scale)
            return resized.flatten(2)

        return function

    return [along(dim) for dim in range(len(sizes))]


def _resize(operator: str) -> Callable[..., Tensor]:
    return lambda x, sizes, *options: _applied(x, _resized(operator, sizes, *options))


def _resize_backward(operator: str) -> Callable[..., Tensor]:
    def backward(gradient: Tensor, sizes: Sequence[int], before: Sequence[int], *options: Any) -> Tensor:
        return _transposed(gradient, _resized(operator, sizes, *options), before[2:])

    return backward


def _repeated_ends_backward(spatial: int) -> Callable[..., Tensor]:
    """Return the backward function of replication padding."""

    def along(before: int, after: int) -> Along:
        return lambda rows: functional.pad(rows, (before, after), mode="replicate")

    def backward(gradient: Tensor, x: Tensor, widths: Sequence[int]) -> Tensor:
        functions = [along(widths[-2 * k - 2], widths[-2 * k - 1]) for k in range(spatial)]
        return _transposed(gradient, functions, x.shape[-spatial:])

    return backward


# ---- the largest of windows --------------------------------------------------------------------------------------


class _Windows:
    """The entries of each window, and which of them is the largest.

    Args:
        x: values.
        places: for each dimension the windows along it, each a list of indices; -1 for those outside.
    """

    def __init__(self, x: Tensor, places: Sequence[Sequence[Sequence[int]]]) -> None:
        self._shape = x.shape
        self._spatial = sizes = x.shape[-len(places) :]
        self._counts = [len(windows) for windows in places]
        rows = [[_flat(place, sizes) for place in itertools.product(*window)] for window in itertools.product(*places)]
        with unrecorded():
            flat = torch.tensor(rows, device=x.device)
            self._inside, self._places = flat >= 0, flat.clamp(min=0)
        picked = x.flatten(-len(places)).index_select(-1, self._places.flatten())
        values = picked.unflatten(-1, self._places.shape)
        self._values = torch.where(self._inside, values, -torch.inf)
        self._largest = self._values.amax(-1)

    def largest(self) -> tuple[Tensor, Tensor]:
        """Return the largest entry of each window, and its index among all entries."""
        where = (self._first * self._places).sum(-1)
        return self._largest.unflatten(-1, self._counts), where.unflatten(-1, self._counts)

    def derivative(self, gradient: Tensor) -> Tensor:
        """Return the derivative with respect to the values, from the gradient with respect to the largest entries."""
        rows = gradient.flatten(-len(self._counts)).unsqueeze(-1)
        terms = torch.where(self._first, rows, 0.0).flatten(-2)
        shape = [*self._shape[: -len(self._counts)], math.prod(self._spatial)]
        return gradient.new_zeros(shape).index_add(-1, self._places.flatten(), terms).view(self._shape)

    @property
    def _first(self) -> Tensor:
        """Mask of the entry that torch selects in each window: the first of the largest, but the last that is NaN."""
        largest = self._largest.unsqueeze(-1)
        candidates = ((self._values == largest) | self._values.isnan()) & self._inside
        number = candidates.cumsum(-1)
        return candidates & (number == torch.where(largest.isnan(), number[..., -1:], 1))


def _flat(place: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the index among all entries; -1 outside."""
    if min(place) < 0:
        return -1
    return sum(k * math.prod(sizes[d + 1 :]) for d, k in enumerate(place))


def _steps(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[list[int]]:
    """Return windows along one dimension at equal distances."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1) * ceil_mode) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # a window must begin inside or in the padding before
    every = [[k * stride - padding + tap * dilation for tap in range(kernel)] for k in range(count)]
    return [[place if 0 <= place < size else -1 for place in window] for window in every]


def _shares(size: int, count: int) -> list[list[int]]:
    """Return ``count`` windows along one dimension that cover it, as for adaptive pooling."""
    ends = [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]
    longest = max(last - first for first, last in ends)
    return [[*range(first, last), *[-1] * (longest - last + first)] for first, last in ends]


def _pooled(
    spatial: int,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> _Windows:
    places = []
    for dim, size in enumerate(x.shape[-spatial:]):
        taps, step = _of_dimension(kernel, dim), _of_dimension(stride, dim, kernel)
        options = _of_dimension(padding, dim), _of_dimension(dilation, dim), ceil_mode
        places.append(_steps(size, taps, step, *options))
    return _Windows(x, places)


def _adaptively_pooled(x: Tensor, counts: Sequence[int]) -> _Windows:
    return _Windows(x, [_shares(*pair) for pair in zip(x.shape[-len(counts) :], counts, strict=True)])


def _largest_pool(spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda x, *options: _pooled(spatial, x, *options).largest()


def _largest_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda gradient, x, *options: _pooled(spatial, x, *options[:-1]).derivative(gradient)


def _adaptive_largest_pool(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _adaptively_pooled(x, counts).largest()


def _adaptive_largest_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda gradient, x, _: _adaptively_pooled(x, gradient.shape[-spatial:]).derivative(gradient)


_RESIZED = [f"{name}{k}d" for k in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")]
_RESIZED += ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]

TABLE: dict[Any, Callable[..., Any]] = {
    _ATEN.avg_pool2d.default: _average_pool(2),
    _ATEN.avg_pool3d.default: _average_pool(3),
    _ATEN.avg_pool2d_backward.default: _average_pool_backward(2),
    _ATEN.avg_pool3d_backward.default: _average_pool_backward(3),
    _ATEN._adaptive_avg_pool2d.default: _adaptive_average_pool,
    _ATEN._adaptive_avg_pool3d.default: _adaptive_average_pool,
    _ATEN._adaptive_avg_pool2d_backward.default: _adaptive_average_pool_backward(2),
    _ATEN._adaptive_avg_pool3d_backward.default: _adaptive_average_pool_backward(3),
    **{getattr(_ATEN, name).default: _resize(name) for name in _RESIZED},
    **{getattr(_ATEN, f"{name}_backward").default: _resize_backward(name) for name in _RESIZED},
    _ATEN.replication_pad1d_backward.default: _repeated_ends_backward(1),
    _ATEN.replication_pad2d_backward.default: _repeated_ends_backward(2),
    _ATEN.replication_pad3d_backward.default: _repeated_ends_backward(3),
    _ATEN.max_pool2d_with_indices.default: _largest_pool(2),
    _ATEN.max_pool3d_with_indices.default: _largest_pool(3),
    _ATEN.max_pool2d_with_indices_backward.default: _largest_pool_backward(2),
    _ATEN.max_pool3d_with_indices_backward.default: _largest_pool_backward(3),
    _ATEN.adaptive_max_pool2d.default: _adaptive_largest_pool,
    _ATEN.adaptive_max_pool3d.default: _adaptive_largest_pool,
    _ATEN.adaptive_max_pool2d_backward.default: _adaptive_largest_pool_backward(2),
    _ATEN.adaptive_max_pool3d_backward.default: _adaptive_largest_pool_backward(3),
}
"""Decompositions of pooling, resizing and padding operators."""
