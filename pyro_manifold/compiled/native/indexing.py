"""Gather and scatter by indices, the same for all chains or (`by_chain`) of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pyro_manifold.compiled.broadcasting import broadcast_shapes
from pyro_manifold.compiled.native import by_chain
from pyro_manifold.compiled.native.values import (
    Index,
    Place,
    Shape,
    UnsupportedOperatorError,
    Value,
    entry,
    flat,
    number,
    shifted,
    stepped,
    strided,
)
from pyro_manifold.compiled.native.writer import Writer


class _Elements(NamedTuple):
    """Indices into one dimension as C integers, as functions of an index into the array of them.

    Attributes:
        place: the index at that position.
        exists: whether it is in range, if each chain has its own.
    """

    place: Callable[[Index], Place]
    exists: by_chain.Condition | None = None


def _elements(writer: Writer, index: Value, size: int, shape: Shape) -> _Elements:
    """Return indices as C integers, with negative ones counted from the front."""
    if index.constant is not None:
        tensor = index.constant
        counted = torch.where(tensor < 0, tensor + size, tensor).broadcast_to(shape).contiguous()
        return _Elements(writer.integers(counted))
    if not size:
        raise UnsupportedOperatorError("an index into an empty dimension")
    if index.shared:
        found = writer.stored(index.broadcast(shape))
        return _Elements(lambda i: Place(f"within(LANE({found.at(i)}, 0), {size})"))
    own = writer.cheap(index.broadcast(shape))
    return _Elements(lambda i: by_chain.place(own, i, size), lambda i: by_chain.exists(own, i, size))


class _Places:
    """Map from the elements of ``x[indices]`` to those of x.

    Args:
        writer: writer of the C source.
        shape: shape of x.
        indices: index for each dimension, or None for all of it.
    """

    def __init__(self, writer: Writer, shape: Shape, indices: list[Value | None]) -> None:
        given = _without_masks([*indices, *[None] * (len(shape) - len(indices))])
        self._rank = len(shape)
        dims = [d for d, index in enumerate(given) if index is not None]
        chosen = {d: index for d, index in enumerate(given) if index is not None}
        self._picked = tuple(broadcast_shapes(*[index.shape for index in chosen.values()]))
        self._elements = {d: _elements(writer, index, shape[d], self._picked) for d, index in chosen.items()}
        adjacent = dims == list(range(dims[0], dims[-1] + 1))
        self._front = dims[0] if adjacent else 0
        rest = [n for d, n in enumerate(shape) if d not in dims]
        self.shape = (*rest[: self._front], *self._picked, *rest[self._front :])

    def index_of(self, index: Index) -> Index:
        """Return the index into x of an element of the result."""
        rest = iter([*index[: self._front], *index[self._front + len(self._picked) :]])
        picked = self._of_picked(index)
        return [self._elements[d].place(picked) if d in self._elements else next(rest) for d in range(self._rank)]

    @property
    def condition(self) -> by_chain.Condition | None:
        """Return the condition that x has the element of an index of the result; None if all chains share indices."""
        own = [elements.exists for elements in self._elements.values() if elements.exists is not None]
        return (lambda index: " && ".join(exists(self._of_picked(index)) for exists in own)) if own else None

    def _of_picked(self, index: Index) -> Index:
        return index[self._front : self._front + len(self._picked)]


def _without_masks(indices: list[Value | None]) -> list[Value | None]:
    given: list[Value | None] = []
    for index in indices:
        if len(given) == len(indices):
            break  # a mask indexes several dimensions
        if index is not None and index.constant is not None and index.constant.dtype == torch.bool:
            found = index.constant.nonzero(as_tuple=True)
            given += [Value(tuple(x.shape), index.at, constant=x) for x in found]
        else:
            given.append(index)
    return given


def _indexed(writer: Writer, shape: Shape, x: Value, indices: list[Value | None]) -> Value:
    places = _Places(writer, x.shape, indices)
    return _read(writer, x, shape, places.index_of, places.condition)


def _put(
    writer: Writer, shape: Shape, x: Value, indices: list[Value | None], values: Value, accumulate: bool = False
) -> Value:
    places = _Places(writer, x.shape, indices)
    values = values.broadcast(places.shape)
    return _changed(writer, x, places.shape, places.index_of, values, accumulate, places.condition)


def _read(
    writer: Writer,
    x: Value,
    shape: Shape,
    index_of: Callable[[Index], Index],
    condition: by_chain.Condition | None,
) -> Value:
    """Return elements of x at some places."""
    x = writer.cheap(x)
    return x.viewed(shape, index_of) if condition is None else by_chain.picked(x, shape, index_of, condition)


def _changed(
    writer: Writer,
    x: Value,
    shape: Shape,
    index_of: Callable[[Index], Index],
    values: Value,
    accumulate: bool,
    condition: by_chain.Condition | None = None,
) -> Value:
    """Return a copy of x with values assigned, or added, at some places, one after the other."""
    result, sign = writer.copied(x), "+=" if accumulate else "="
    array = str(result.array)
    body: Callable[[Index], str] = lambda i: f"{entry(array, flat(index_of(i), x.shape))} {sign} {values.at(i)};"  # noqa: E731
    if condition is not None:
        body = by_chain.put(array, x.shape, index_of, condition, values, sign)
    writer.lines.append(writer.for_each(shape, body))
    return result


def _index_select(writer: Writer, shape: Shape, x: Value, dim: int, index: Value) -> Value:
    if not x.shape:
        return x
    return _indexed(writer, shape, x, [*[None] * (dim % len(x.shape)), index])


def _embedding(writer: Writer, shape: Shape, weight: Value, index: Value, *_: object) -> Value:
    return _indexed(writer, shape, weight, [index])


def _along(
    writer: Writer, x: Value, dim: int, index: Value
) -> tuple[Callable[[Index], Index], by_chain.Condition | None]:
    """Return the index map of ``gather`` and ``scatter``: an index for each element, along one dimension."""
    dim %= len(x.shape)
    elements = _elements(writer, index, x.shape[dim], index.shape)
    return lambda i: [*i[:dim], elements.place(i), *i[dim + 1 :]], elements.exists


def _gathered(writer: Writer, shape: Shape, x: Value, dim: int, index: Value, **_: object) -> Value:
    if not x.shape:
        return x
    return _read(writer, x, shape, *_along(writer, x, dim, index))


def _scattered(accumulate: bool) -> Callable[..., Any]:
    def emit(writer: Writer, shape: Shape, x: Value, dim: int, index: Value, source: Value | float) -> Value:
        values = source.viewed(index.shape, lambda i: i) if isinstance(source, Value) else None
        values = number(source).broadcast(index.shape) if values is None else values  # type: ignore[arg-type]
        if not x.shape:
            x, index, values = (writer.reshaped(value, (1,)) for value in (x, index, values))
        index_of, condition = _along(writer, x, dim, index)
        return writer.reshaped(_changed(writer, x, index.shape, index_of, values, accumulate, condition), shape)

    return emit


def _index_add(
    writer: Writer, shape: Shape, x: Value, dim: int, index: Value, source: Value, alpha: float = 1
) -> Value:
    if alpha != 1:
        raise UnsupportedOperatorError("index_add with a factor")
    places = _Places(writer, x.shape, [*[None] * (dim % len(x.shape)), index])
    return _changed(writer, x, places.shape, places.index_of, source, True, places.condition)


def _index_fill(writer: Writer, shape: Shape, x: Value, dim: int, index: Value, value: Value | float) -> Value:
    filled = value if isinstance(value, Value) else number(value)
    return _put(writer, shape, x, [*[None] * (dim % max(len(x.shape), 1)), index], filled)


def _put_slice(
    writer: Writer,
    shape: Shape,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim %= len(shape)
    first = range(shape[dim])[slice(start, None)].start

    def index_of(i: Index) -> Index:
        return [*i[:dim], shifted(strided(i[dim], step), first), *i[dim + 1 :]]

    return _changed(writer, x, source.shape, index_of, source, False)


def _padded(writer: Writer, shape: Shape, x: Value, widths: list[int], value: float = 0) -> Value:
    rest = [0] * (len(shape) - len(widths) // 2)
    before, after = rest + widths[-2::-2], rest + widths[::-2]
    first = [max(-n, 0) for n in before]  # number of elements removed, if the width is negative
    kept = tuple(n - f - max(-b, 0) for n, f, b in zip(x.shape, first, after, strict=True))
    part = x.viewed(kept, lambda i: [shifted(k, n) for k, n in zip(i, first, strict=True)])
    index_of: Callable[[Index], Index] = lambda i: [shifted(k, max(n, 0)) for k, n in zip(i, before, strict=True)]  # noqa: E731
    return _changed(writer, number(value).broadcast(shape), kept, index_of, part, False)


def _put_selected(writer: Writer, shape: Shape, x: Value, source: Value, dim: int, position: int) -> Value:
    dim %= len(shape)
    index_of: Callable[[Index], Index] = lambda i: [*i[:dim], Place(str(position % shape[dim])), *i[dim:]]  # noqa: E731
    return _changed(writer, x, source.shape, index_of, source, False)


def _put_strided(
    writer: Writer,
    shape: Shape,
    x: Value,
    source: Value,
    size: object,
    stride: list[int],
    offset: int | None = None,
    *,
    strides: Sequence[int],
    first: int,
) -> Value:
    """Write ``as_strided_scatter``; x is a storage in memory order, and the result a view of it with these strides."""
    index_of: Callable[[Index], Index] = lambda i: [Place(stepped(i, stride, offset or 0))]  # noqa: E731
    row = writer.reshaped(x, (x.size,))
    changed = str(_changed(writer, row, source.shape, index_of, source, False).array)
    return Value(shape, lambda index: entry(changed, stepped(index, strides, first)))


def _along_diagonal(rank: int, offset: int, dim1: int, dim2: int) -> Callable[[Index], Index]:
    first, second = dim1 % rank, dim2 % rank

    def index_of(index: Index) -> Index:
        rest = iter(index[:-1])
        along = {first: shifted(index[-1], max(-offset, 0)), second: shifted(index[-1], max(offset, 0))}
        return [along[d] if d in along else next(rest) for d in range(rank)]

    return index_of


def _diagonal(writer: Writer, shape: Shape, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return writer.cheap(x).viewed(shape, _along_diagonal(len(x.shape), offset, dim1, dim2))


def _put_diagonal(
    writer: Writer, shape: Shape, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    return _changed(writer, x, source.shape, _along_diagonal(len(shape), offset, dim1, dim2), source, False)


def _rolled(writer: Writer, shape: Shape, x: Value, shifts: list[int], dims: list[int] | None = None) -> Value:
    if not dims:  # of all elements in a row
        row = _rolled(writer, (x.size,), writer.reshaped(x, (x.size,)), shifts, [0])
        return writer.reshaped(row, shape)
    shift = {d % len(shape): s for s, d in zip(shifts, dims, strict=True)}

    def index_of(index: Index) -> Index:
        return [
            Place(f"({i} + {-shift[d] % n}) % {n}") if d in shift and n > 1 else i
            for d, (i, n) in enumerate(zip(index, shape, strict=True))
        ]

    return x.viewed(shape, index_of)


def _flipped(_: Writer, shape: Shape, x: Value, dims: list[int]) -> Value:
    turned = {d % max(len(shape), 1) for d in dims}

    def index_of(index: Index) -> Index:
        return [Place(f"{shape[d] - 1} - {i}") if d in turned else i for d, i in enumerate(index)]

    return x.viewed(shape, index_of)


TABLE: dict[str, Callable[..., Any]] = {
    "_unsafe_index": _indexed,
    "_unsafe_index_put": _put,
    "as_strided_scatter": _put_strided,
    "constant_pad_nd": _padded,
    "diagonal": _diagonal,
    "diagonal_scatter": _put_diagonal,
    "embedding": _embedding,
    "flip": _flipped,
    "gather": _gathered,
    "index": _indexed,
    "index_add": _index_add,
    "index_fill": _index_fill,
    "index_put": _put,
    "index_select": _index_select,
    "roll": _rolled,
    "scatter": _scattered(False),
    "scatter_add": _scattered(True),
    "select_scatter": _put_selected,
    "slice_scatter": _put_slice,
}
