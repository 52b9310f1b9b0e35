"""Writing of graphs with tall matrices, whose rows are in the lanes of vectors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from pyro_manifold.compiled.native.emit import GraphWriter, is_read_once, operator_name
from pyro_manifold.compiled.native.operators import ELEMENTWISE, OPERATORS
from pyro_manifold.compiled.native.rows import RowsWriter
from pyro_manifold.compiled.native.values import Shape, UnsupportedOperatorError, Value

_ELEMENTWISE = {
    *(ELEMENTWISE.keys() - {"masked_fill"}),
    *("add", "sub", "pow", "addcmul", "addcdiv", "clamp", "div", "round", "polygamma"),
    *("alias", "clone", "detach", "lift_fresh_copy"),
}
_RESHAPES = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"}
_PRODUCTS = {"mm", "bmm", "mv", "dot"}
_SUMS = {"sum", "mean"}
_CONSTANTS = {"zeros_like", "ones_like", "full_like"}


@dataclass(frozen=True)
class Flattened:
    """A tall matrix with some dimensions made one, of which only sums are taken.

    Attributes:
        value: the matrix.
        groups: dimensions of the matrix that each dimension consists of.
    """

    value: Value
    groups: Sequence[Sequence[int]]


class RowsGraphWriter(GraphWriter):
    """Writes the nodes of a graph; those of tall matrices on rows.

    A node is on rows if one of its arguments is.
    """

    _writer: RowsWriter

    def _written(self, node: fx.Node) -> Any:
        if not any(_is_tall(self._values[source]) for source in node.all_input_nodes):
            return super()._written(node)
        name = operator_name(node)
        if node.target is operator.getitem:
            return self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        emit = _EMITTERS.get(name)
        if emit is None:
            raise UnsupportedOperatorError(f"{name} of rows")
        result = emit(self, node, name, *[self._value_of(argument) for argument in node.args])
        if isinstance(result, Value) and result.computes and not (is_read_once(node) or _is_only_sliced(node)):
            return self._writer.stored(result)
        return result

    def output(self, value: Value, rows: int | None) -> Value:
        """Return an output, with its rows in lanes if ``rows`` is given: constants are laid out."""
        if rows is not None and value.rows is None and value.constant is not None:
            return self._writer.laid_out(value.constant, rows)
        if value.rows != rows:
            raise UnsupportedOperatorError("an output that is not on rows")
        return value

    # ---- operators that keep rows apart --------------------------------------------------------------------------

    def _elementwise(self, node: fx.Node, name: str, *arguments: Any) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        options = {key: self._value_of(option) for key, option in node.kwargs.items() if key not in _OF_MEMORY}
        operands = [argument for argument in arguments if isinstance(argument, Value)]
        from_the_right = {len(x.shape) - x.rows for x in operands if x.rows is not None}
        if len(from_the_right) != 1 or any(isinstance(argument, Flattened) for argument in arguments):
            raise UnsupportedOperatorError("rows broadcast with columns")
        rows = len(shape) - from_the_right.pop()
        aligned = [self._aligned(x, rows - len(shape)) if isinstance(x, Value) else x for x in arguments]
        options = {
            key: self._aligned(x, rows - len(shape)) if isinstance(x, Value) else x for key, x in options.items()
        }
        result: Value = OPERATORS[name].emit(self._writer, self._writer.shape_of(shape, rows), *aligned, **options)
        return replace(result, rows=rows, array=result.array)

    def _aligned(self, x: Value, rows: int) -> Value:
        """Return an operand whose dimension of rows, counted from the right, is on rows or of size 1."""
        if x.rows is not None or len(x.shape) < -rows or x.shape[rows] == 1:
            return x
        if x.constant is None:
            raise UnsupportedOperatorError("rows broadcast with values that are not on rows")
        return self._writer.laid_out(x.constant, len(x.shape) + rows)

    def _constant_like(self, node: fx.Node, name: str, x: Value, *arguments: Any) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        assert x.rows is not None
        shape = self._writer.shape_of(shape, x.rows)
        filled = OPERATORS[name].emit(self._writer, shape, x, *arguments)
        return replace(filled, rows=x.rows, computes=True)  # stored, which sets rows after the last one to 0

    def _reshaped(self, node: fx.Node, name: str, x: Value, *_: object) -> Any:
        shape, source = self._shape(node, name), _real_shape(self, x)
        assert shape is not None
        assert x.rows is not None
        if [n for n in source if n != 1] != [n for n in shape if n != 1]:
            return Flattened(x, _groups(source, shape))
        before = sum(n != 1 for n in source[: x.rows])
        rows = [d for d, n in enumerate(shape) if n != 1][before]
        result = self._writer.reshaped(replace(x, array=None), self._writer.shape_of(shape, rows))
        return replace(result, rows=rows, array=x.array)

    def _expanded(self, node: fx.Node, name: str, x: Value, *_: object) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        assert x.rows is not None
        rows = len(shape) - len(x.shape) + x.rows
        return replace(x.broadcast(self._writer.shape_of(shape, rows)), rows=rows)

    def _permuted(self, node: fx.Node, name: str, x: Value, *arguments: Any) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        assert x.rows is not None
        rank = len(shape)
        if name == "permute":
            order = [d % rank for d in arguments[0]]
        else:
            first, second = arguments if arguments else (0, 1)
            order = list(range(rank))
            if rank > 1:
                order[first], order[second] = order[second], order[first]
        rows = order.index(x.rows)
        result = OPERATORS["permute"].emit(self._writer, self._writer.shape_of(shape, rows), x, order)
        return replace(result, rows=rows)

    def _part(self, node: fx.Node, name: str, x: Value, *arguments: Any) -> Any:
        """Write a part along another dimension than that of rows; all rows are a part too."""
        place = 1 if name.startswith("split") else 0
        dim = (arguments[place] if len(arguments) > place else 0) % len(x.shape)
        shape = self._shape(node, name)
        if dim == x.rows:
            if name == "slice" and shape is not None and shape[dim] == self._writer.rows:
                return x
            raise UnsupportedOperatorError("a part of the rows")
        assert x.rows is not None
        rows = x.rows - (name in ("select", "unbind") and dim < x.rows)
        if shape is not None:
            shape = self._writer.shape_of(shape, rows)
        result = OPERATORS[name].emit(self._writer, shape, x, *arguments)
        if isinstance(result, list):
            return [replace(part, rows=rows) for part in result]
        return replace(result, rows=rows, array=x.array if result.size == x.size else None)

    def _concatenated(self, node: fx.Node, name: str, parts: list[Value], dim: int = 0) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        rows = next(part.rows for part in parts if part.rows is not None)
        dim %= len(shape)
        parts = [self._aligned(part, rows - len(shape)) for part in parts]
        if dim == rows or any(part.rows != rows for part in parts):
            raise UnsupportedOperatorError("concatenated rows")
        return self._on_rows(shape, rows, lambda shape: OPERATORS[name].emit(self._writer, shape, parts, dim))

    def _on_rows(self, shape: Shape, rows: int, emit: Callable[[Shape], Value]) -> Value:
        """Write by an emitter for other values, which keeps rows apart."""
        if any(n != 1 for n in shape[:rows]):
            raise UnsupportedOperatorError("batches of tall matrices")
        with self._writer.one_by_one():
            result = emit(self._writer.shape_of(shape, rows))
        return replace(result, rows=rows)

    # ---- sums over rows ------------------------------------------------------------------------------------------

    def _summed(
        self, node: fx.Node, name: str, x: Value | Flattened, dim: Any = None, keep: bool = False, **_: Any
    ) -> Value:
        shape = self._shape(node, name)
        assert shape is not None
        if isinstance(x, Flattened):
            chosen = _dimensions(dim, len(x.groups))
            if keep:
                raise UnsupportedOperatorError("a sum over rows that keeps dimensions")
            dims, value = [d for k in chosen for d in x.groups[k]], x.value
        else:
            dims, value = _dimensions(dim, len(x.shape)), x
        assert value.rows is not None
        terms = math.prod(n for d, n in enumerate(_real_shape(self, value)) if d in dims)
        scale = 1 / terms if name == "mean" else 1.0
        if value.rows in dims:
            result = self._writer.summed(value, dims, keep, scale)
            return self._writer.reshaped(result, shape) if result.shape != shape else result
        if isinstance(x, Flattened):
            raise UnsupportedOperatorError("a sum within rows of a flattened matrix")
        rows = value.rows if keep else value.rows - sum(d < value.rows for d in dims)
        return self._on_rows(shape, rows, lambda _: OPERATORS[name].emit(self._writer, None, value, dims, keep))

    # ---- products ------------------------------------------------------------------------------------------------

    def _product(self, node: fx.Node, name: str, left: Value, right: Value) -> Value:
        shape = self._shape(node, name)
        if shape is None or isinstance(left, Flattened) or isinstance(right, Flattened):
            raise UnsupportedOperatorError("products of flattened matrices")
        if name in ("mv", "dot"):
            return self._vector_product(shape, left, right)
        rank = len(shape)
        inner = left.rows == rank - 1 or right.rows == rank - 2
        if inner:
            left, right = self._aligned(left, -1), self._aligned(right, -2)
            if left.rows != rank - 1 or right.rows != rank - 2:
                raise UnsupportedOperatorError("a product of rows and values that are not on rows")
            return self._writer.inner_product(left, right, _is_gram(node))
        if left.rows == rank - 2 and right.rows is None:
            return self._writer.outer_product(left, right)
        if right.rows == rank - 1 and left.rows is None:
            return _mirrored(self._writer.outer_product(_mirrored(right), _mirrored(left)))
        raise UnsupportedOperatorError("a product of rows by rows")

    def _vector_product(self, shape: Shape, left: Value, right: Value) -> Value:
        raise UnsupportedOperatorError("products of rows and vectors")


def _is_only_sliced(node: fx.Node) -> bool:
    """Return whether only parts of a node are used, which then are stored one by one: position and momentum."""
    return all(operator_name(user) == "slice" for user in node.users)


def _is_tall(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_tall(part) for part in value)
    return isinstance(value, Flattened) or (isinstance(value, Value) and value.rows is not None)


def _real_shape(graph: RowsGraphWriter, x: Value) -> Shape:
    return tuple(graph._writer.rows if d == x.rows else n for d, n in enumerate(x.shape))


def _dimensions(dim: Any, rank: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return sorted({d % rank for d in ([dim] if isinstance(dim, int) else dim)})


def _groups(source: Shape, target: Shape) -> list[list[int]]:
    """Return the dimensions of a shape that each dimension of another one, of the same entries, consists of."""
    groups: list[list[int]] = []
    d = 0
    for n in target:
        group, size = [], 1
        while size < n and d < len(source):
            group.append(d)
            size *= source[d]
            d += 1
        if size != n:
            raise UnsupportedOperatorError("a reshape that divides rows")
        groups.append(group)
    return groups


def _mirrored(x: Value) -> Value:
    *batch, n, m = x.shape
    rank = len(x.shape)
    rows = None if x.rows is None else {rank - 1: rank - 2, rank - 2: rank - 1}[x.rows]
    return replace(x.viewed((*batch, m, n), lambda i: [*i[:-2], i[-1], i[-2]]), rows=rows)


def _is_gram(node: fx.Node) -> bool:
    """Return whether a product is that of a matrix and its transpose, which is symmetric."""
    left, right = (_without_views(argument) for argument in node.args)
    if operator_name(left) not in ("transpose", "t", "permute") or left.args[0].meta["val"].dim() > 3:
        return False
    return bool(_without_views(left.args[0]) is right)


def _without_views(node: Any) -> Any:
    """Return the node of the same matrix before it was viewed in the same shape."""
    while operator_name(node) in ("view", "_unsafe_view", "reshape", "clone", "alias", "detach"):
        source = node.args[0]
        if list(source.meta["val"].shape) != list(node.meta["val"].shape):
            break
        node = source
    return node


_OF_MEMORY = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}

_PARTS = ("slice", "select", "split", "split_with_sizes", "unbind")
_EMITTERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_ELEMENTWISE, RowsGraphWriter._elementwise),
    **dict.fromkeys(_CONSTANTS, RowsGraphWriter._constant_like),
    **dict.fromkeys(_RESHAPES, RowsGraphWriter._reshaped),
    **dict.fromkeys(("transpose", "t", "permute"), RowsGraphWriter._permuted),
    **dict.fromkeys(_PARTS, RowsGraphWriter._part),
    **dict.fromkeys(_PRODUCTS, RowsGraphWriter._product),
    **dict.fromkeys(_SUMS, RowsGraphWriter._summed),
    "cat": RowsGraphWriter._concatenated,
    "expand": RowsGraphWriter._expanded,
}
