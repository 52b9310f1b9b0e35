"""Reductions over dimensions (sums, products, extremes), and cumulative operators along one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pyro_manifold.compiled.native.sorting import extreme
from pyro_manifold.compiled.native.values import (
    Index,
    Place,
    Shape,
    UnsupportedOperatorError,
    Value,
    entry,
    flat,
    shifted,
)
from pyro_manifold.compiled.native.writer import Writer


def _dimensions(x: Value, dim: object) -> list[int]:
    rank = len(x.shape)
    if dim is None or dim == []:
        return list(range(rank))
    return sorted({d % rank for d in ([dim] if isinstance(dim, int) else dim)}) if rank else []  # type: ignore[attr-defined]


def reduced(writer: Writer, x: Value, dim: object, keep: bool, start: str, step: str, finish: str = "{0}") -> Value:
    """Write a reduction: ``s = start``, then ``s = step`` for each x over these dimensions, then ``finish`` of s."""
    dims = _dimensions(x, dim)
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    over = tuple(n if d in dims else 1 for d, n in enumerate(x.shape))
    array = writer.array(math.prod(shape))
    writer.arithmetic += x.size

    def body(outer: Index) -> str:
        def inner(index: Index) -> str:
            element = x.at([index[d] if d in dims else outer[d] for d in range(len(x.shape))])
            return f"s = {step.format('s', element)};"

        loops = writer.for_each(over, inner, "r")
        return f"V s = {start}; {loops} {entry(array, flat(outer, shape))} = {finish.format('s')};"

    writer.lines.append(writer.for_each(shape, body))
    return writer.value(shape if keep else tuple(n for d, n in enumerate(x.shape) if d not in dims), array)


def _reduction(start: str, step: str, finish: str = "{0}") -> Callable[..., Any]:
    def emit(writer: Writer, _: Shape, x: Value, dim: object = None, keepdim: bool = False, **__: object) -> Value:
        return reduced(writer, x, dim, keepdim, start, step, finish)

    return emit


def _mean(writer: Writer, _: Shape, x: Value, dim: object = None, keepdim: bool = False, **__: object) -> Value:
    count = math.prod(x.shape[d] for d in _dimensions(x, dim))
    return reduced(writer, x, dim, keepdim, "spread(0)", "{0} + {1}", f"{{0}} / spread({count})")


def _variance(
    writer: Writer, _: Shape, x: Value, dim: object = None, correction: float | None = 1, keepdim: bool = False
) -> Value:
    x = writer.cheap(x)
    count = math.prod(x.shape[d] for d in _dimensions(x, dim))
    mean = reduced(writer, x, dim, True, "spread(0)", "{0} + {1}", f"{{0}} / spread({count})").broadcast(x.shape)
    centred = Value(x.shape, lambda index: f"({x.at(index)} - {mean.at(index)})", computes=True)
    divisor = max(count - (1 if correction is None else correction), 0)
    return reduced(writer, centred, dim, keepdim, "spread(0)", "{0} + v_square({1})", f"{{0}} / spread({divisor})")


def _along(step: str, start: str) -> Callable[..., Any]:
    def emit(writer: Writer, shape: Shape, x: Value, dim: int, **_: object) -> Value:
        if not shape:
            return x
        dim %= len(shape)
        array = writer.array(x.size)
        others = tuple(1 if d == dim else n for d, n in enumerate(shape))

        def body(outer: Index) -> str:
            index = [*outer[:dim], Place("r"), *outer[dim + 1 :]]
            sums = f"s = {step.format('s', x.at(index))}; {entry(array, flat(index, shape))} = s;"
            return f"V s = {start}; for (int r = 0; r < {shape[dim]}; r++) {{ {sums} }}"

        writer.lines.append(writer.for_each(others, body))
        writer.arithmetic += x.size
        return writer.value(shape, array)

    return emit


def _extreme(name: str) -> Callable[..., Any]:
    """Return the emitter of ``max`` or ``min``; along a dimension, they also return the index."""
    start, step = _EXTREMES[name]

    def emit(writer: Writer, shape: Shape | None, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
        return reduced(writer, x, None, False, start, step) if dim is None else extreme(writer, x, dim, keepdim, name)

    return emit


_EXTREMES = {"max": ("spread(-INFINITY)", "v_max({0}, {1})"), "min": ("spread(INFINITY)", "v_min({0}, {1})")}


def _concatenated(writer: Writer, shape: Shape, parts: list[Value], dim: int = 0) -> Value:
    parts = [part for part in parts if part.shape != (0,)]
    dim %= len(shape)
    array, offset = writer.array(math.prod(shape)), 0
    for part in parts:

        def body(index: Index, part: Value = part, offset: int = offset) -> str:
            place = [*index[:dim], shifted(index[dim], offset), *index[dim + 1 :]]
            return f"{entry(array, flat(place, shape))} = {part.at(index)};"

        writer.lines.append(writer.for_each(part.shape, body))
        writer.arithmetic += part.size
        offset += part.shape[dim]
    if offset != shape[dim]:
        raise UnsupportedOperatorError("a concatenation of unequal parts")
    return writer.value(shape, array)


TABLE: dict[str, Callable[..., Any]] = {
    "all": _reduction("spread(1)", "v_and({0}, {1})"),
    "amax": _reduction(*_EXTREMES["max"]),
    "amin": _reduction(*_EXTREMES["min"]),
    "any": _reduction("spread(0)", "v_or({0}, {1})"),
    "cat": _concatenated,
    "cumsum": _along("{0} + {1}", "spread(0)"),
    "logcumsumexp": _along("v_logaddexp({0}, {1})", "spread(-INFINITY)"),
    "max": _extreme("max"),
    "mean": _mean,
    "min": _extreme("min"),
    "prod": _reduction("spread(1)", "{0} * {1}"),
    "sum": _reduction("spread(0)", "{0} + {1}"),
    "var": _variance,
}
