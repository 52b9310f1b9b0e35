"""Orthogonal factors of matrices: QR, singular values, products of Householder reflections.

Q and R have the signs of LAPACK, and so of torch, except for columns that are linearly dependent on those before them.
The signs of singular vectors are arbitrary: a pair of them, a column of U and a row of Vᵀ, may have the other sign than
in torch, and results that do not depend on signs agree. Singular matrices have orthogonal factors all the same; those
of non-finite matrices are NaN, where torch raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pyro_manifold.compiled.native.matrices import each_matrix, mirrored, part_of
from pyro_manifold.compiled.native.values import Place, Shape, UnsupportedOperatorError, Value
from pyro_manifold.compiled.native.writer import Writer


def _new(writer: Writer, shape: Shape) -> Value:
    return writer.value(shape, writer.array(math.prod(shape)))


def _qr(writer: Writer, _: None, matrix: Value, mode: str = "reduced") -> Any:
    *batch, m, n = matrix.shape
    a, taus = writer.copied(matrix), _new(writer, (*batch, min(m, n)))

    def call(b: Place) -> str:
        return f"qr({part_of(a, b, m * n)}, {part_of(taus, b, min(m, n))}, {m}, {n})"

    each_matrix(writer, matrix.shape, len(batch), call, m * n * min(m, n))
    columns = m if mode == "complete" else min(m, n)
    q = None if mode == "r" else _product_of_reflections(writer, (*batch, m, columns), a, taus)

    def upper(index: Any) -> str:
        return f"({index[-2]} > {index[-1]} ? spread(0) : {a.at(index)})"

    return q, Value((*batch, columns, n), upper)


def _product_of_reflections(writer: Writer, shape: Shape, reflections: Value, taus: Value) -> Value:
    """Write ``householder_product``, with the number of columns of ``shape``."""
    a, taus, q = writer.stored(reflections), writer.stored(taus), _new(writer, shape)
    *batch, m, columns = shape
    n, count = a.shape[-1], taus.shape[-1]

    def call(b: Place) -> str:
        parts = f"{part_of(a, b, m * n)}, {part_of(taus, b, count)}, {part_of(q, b, m * columns)}"
        return f"product_of_reflections({parts}, {m}, {n}, {count}, {columns})"

    each_matrix(writer, shape, len(batch), call, m * columns * count)
    return q


def _svd(
    writer: Writer,
    _: None,
    matrix: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> Any:
    wide = matrix.shape[-2] < matrix.shape[-1]
    a = writer.copied(mirrored(matrix) if wide else matrix)
    *batch, m, n = a.shape
    columns = m if full_matrices else n
    u, values, v = (_new(writer, (*batch, *shape)) for shape in ((m, columns), (n,), (n, n)))
    taus = _new(writer, (n,))

    def call(b: Place) -> str:
        parts = f"{part_of(a, b, m * n)}, {taus.array}, {part_of(u, b, m * columns)}, {part_of(values, b, n)}"
        return f"svd({parts}, {part_of(v, b, n * n)}, {m}, {n}, {columns})"

    each_matrix(writer, a.shape, len(batch), call, _SWEEPS * 6 * m * n * n)
    if not compute_uv:
        return None, values, None
    return (v, values, mirrored(u)) if wide else (u, values, mirrored(v))


_SWEEPS = 6
"""Number of Jacobi sweeps that most matrices need."""


def _empty_is_not_covered(emit: Callable[..., Any]) -> Callable[..., Any]:
    def checked(writer: Writer, shape: Shape | None, matrix: Value, *arguments: Any, **options: Any) -> Any:
        if not matrix.size:
            raise UnsupportedOperatorError("factors of an empty matrix")
        return emit(writer, shape, matrix, *arguments, **options)

    return checked


TABLE: dict[str, Callable[..., Any]] = {
    "_linalg_svd": _empty_is_not_covered(_svd),
    "linalg_householder_product": _empty_is_not_covered(_product_of_reflections),
    "linalg_qr": _empty_is_not_covered(_qr),
}
