"""Order statistics along a dimension and their indices: sorting, extremes, top-k, medians."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pyro_manifold.compiled.native.values import Index, Place, Shape, UnsupportedOperatorError, Value, entry, flat
from pyro_manifold.compiled.native.writer import Writer

_EXTREMES = {
    "max": ("spread(-INFINITY)", "(x > s) | ((x != x) & (s == s))"),
    "min": ("spread(INFINITY)", "(x < s) | ((x != x) & (s == s))"),
    "cummax": ("spread(-INFINITY)", "(x >= s) | (x != x)"),
    "cummin": ("spread(INFINITY)", "(x <= s) | (x != x)"),
}
"""Initial value, and condition by which x replaces s: the first of ties, the last for cumulative ones; NaN always."""


def extreme(writer: Writer, x: Value, dim: int, keepdim: bool, name: str) -> tuple[Value, Value]:
    """Return the largest or smallest along a dimension and its index."""
    if not x.shape:
        return x, Value((), lambda _: "spread(0)")
    dim %= len(x.shape)
    over = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    found = [writer.array(math.prod(over)) for _ in range(2)]
    writer.lines.append(writer.for_each(over, _scan(x, dim, name, lambda i: flat(i, over), found, last_only=True)))
    writer.arithmetic += 2 * x.size
    shape = over if keepdim else (*x.shape[:dim], *x.shape[dim + 1 :])
    largest, place = (writer.value(shape, array) for array in found)
    return largest, place


def _along(name: str) -> Callable[..., Any]:
    """Return the emitter of ``cummax`` or ``cummin``."""

    def emit(writer: Writer, _: None, x: Value, dim: int) -> tuple[Value, Value]:
        if not x.shape:
            return x, Value((), lambda _: "spread(0)")
        dim %= len(x.shape)
        others = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
        found = [writer.array(x.size) for _ in range(2)]
        place: Callable[[Index], str] = lambda i: flat([*i[:dim], Place("r"), *i[dim + 1 :]], x.shape)  # noqa: E731
        writer.lines.append(writer.for_each(others, _scan(x, dim, name, place, found, last_only=False)))
        writer.arithmetic += 2 * x.size
        largest, places = (writer.value(x.shape, array) for array in found)
        return largest, places

    return emit


def _scan(
    x: Value, dim: int, name: str, place: Callable[[Index], str], found: list[str], *, last_only: bool
) -> Callable[[Index], str]:
    """Return loops along a dimension that keep the extreme so far and its index, or only the last of each."""
    start, better = _EXTREMES[name]

    def body(outer: Index) -> str:
        element = x.at([*outer[:dim], Place("r"), *outer[dim + 1 :]])
        kept = f"{entry(found[0], place(outer))} = s; {entry(found[1], place(outer))} = p;"
        step = f"V x = {element}; M m = {better}; s = choose(m, x, s); p = choose(m, spread(r), p);"
        loop = f"for (int r = 0; r < {x.shape[dim]}; r++) {{ {step} {'' if last_only else kept} }}"
        return f"V s = {start}, p = spread(0); {loop} {kept if last_only else ''}"

    return body


def _extreme_place(name: str) -> Callable[..., Any]:
    """Return the emitter of ``argmax`` or ``argmin``."""

    def emit(writer: Writer, shape: Shape, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            x, dim = writer.reshaped(x, (x.size,)), 0
        return writer.reshaped(extreme(writer, x, dim, keepdim, name)[1], shape)

    return emit


# ---- rows in order -----------------------------------------------------------------------------------------------


def _in_rows(writer: Writer, x: Value, dim: int, call: str) -> tuple[Value, Value, int]:
    """Return a copy of x and the indices of its entries, both with a dimension moved to the end, and that dimension.

    Args:
        writer: writer of the C source.
        x: value to be sorted.
        dim: dimension along which it is sorted.
        call: call of a function of sorting.h, with ``{0}`` for a row, ``{1}`` for its indices and ``{2}`` for its
            length.
    """
    x = writer.reshaped(x, x.shape or (1,))
    dim %= len(x.shape)
    n, others = x.shape[dim], (*x.shape[:dim], *x.shape[dim + 1 :])
    ordered = writer.copied(x.viewed((*others, n), lambda i: [*i[:dim], i[-1], *i[dim:-1]]))
    places = writer.value(ordered.shape, writer.array(x.size))
    if x.size:
        row, of_row = (f"PART({value.array}, b * {n}, {n})" for value in (ordered, places))
        writer.lines.append(f"for (int b = 0; b < {x.size // n}; b++) {call.format(row, of_row, n)};")
    writer.arithmetic += x.size * max(n, 2).bit_length() ** 2
    return ordered, places, dim


def _first_of_rows(value: Value, dim: int, count: int) -> Value:
    """Return the first entries of each row, with the last dimension moved back."""
    others = value.shape[:-1]
    shape = (*others[:dim], count, *others[dim:])
    return value.viewed(shape, lambda i: [*i[:dim], *i[dim + 1 :], i[dim]])


def _sort(
    writer: Writer, _: None, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Value, Value]:
    """Write ``sort``, which is always stable, in torch and here."""
    ordered, places, dim = _in_rows(writer, x, dim, f"sort({{0}}, {{1}}, {{2}}, {int(descending)})")
    count = ordered.shape[-1]
    first, second = (writer.reshaped(_first_of_rows(value, dim, count), x.shape) for value in (ordered, places))
    return first, second


def _topk(
    writer: Writer, _: None, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    if not picks_as_here():
        raise UnsupportedOperatorError("topk of this torch, which takes others of equal numbers,")
    call = f"topk({{0}}, {{1}}, {{2}}, {k}, {int(largest)}, {int(sorted)})" if k else "(void)0"
    ordered, places, dim = _in_rows(writer, x, dim, call)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.shape else ()
    first, second = (writer.reshaped(_first_of_rows(value, dim, k), shape) for value in (ordered, places))
    return first, second


def _one_of_rows(writer: Writer, x: Value, dim: int, keepdim: bool, call: str, place: int) -> tuple[Value, Value]:
    """Return one entry of each row after a function has processed the row, and its original index."""
    ordered, places, dim = _in_rows(writer, x, dim, call)
    others, at = ordered.shape[:-1], Place(str(place))
    shape = (*others[:dim], 1, *others[dim:]) if keepdim else others
    rest: Callable[[Index], Index] = lambda i: [*i[:dim], *i[dim + 1 :]] if keepdim else i  # noqa: E731
    found = (value.viewed(shape, lambda i: [*rest(i), at]) for value in (ordered, places))
    first, second = (writer.reshaped(value, shape if x.shape else ()) for value in found)
    return first, second


def _kth_value(writer: Writer, _: None, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    return _one_of_rows(writer, x, dim, keepdim, f"kth_value({{0}}, {{1}}, {{2}}, {k - 1})", k - 1)


def _median(without_nan: int) -> Callable[..., Any]:
    call = f"median({{0}}, {{1}}, {{2}}, {without_nan})"

    def emit(writer: Writer, shape: Shape | None, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return _one_of_rows(writer, writer.reshaped(x, (x.size,)), 0, False, call, 0)[0]
        return _one_of_rows(writer, x, dim, keepdim, call, 0)

    return emit


@cache
def picks_as_here() -> bool:
    """Return whether this torch breaks ties in ``topk`` as sorting.h does: its C++ library determines it."""
    tied = torch.tensor([k * k % 7 for k in range(100)], dtype=torch.float64)
    return [tied.topk(k)[1].tolist() for k in _PICKED] == list(_PICKED.values())


_PICKED = {
    1: [2],
    25: [*(23, 9, 65, 2, 61, 96, 16, 58, 5, 54, 89, 51, 19, 75, 26, 47, 86, 30, 44, 33, 79, 82, 37, 40, 68)],
}
"""For each k the indices of the k largest of the numbers above."""


TABLE: dict[str, Callable[..., Any]] = {
    "argmax": _extreme_place("max"),
    "argmin": _extreme_place("min"),
    "cummax": _along("cummax"),
    "cummin": _along("cummin"),
    "kthvalue": _kth_value,
    "median": _median(0),
    "nanmedian": _median(1),
    "sort": _sort,
    "topk": _topk,
}
