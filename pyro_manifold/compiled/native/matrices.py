"""Products and factorisations of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pyro_manifold.compiled.native.values import (
    Place,
    Shape,
    UnsupportedOperatorError,
    Value,
    entry,
    flat,
    number,
    shifted,
)
from pyro_manifold.compiled.native.writer import Writer

_SIDE_BY_SIDE = 4  # independent sums, so that the processor need not wait for one addition before the next


def _product(writer: Writer, shape: Shape, left: Value, right: Value) -> Value:
    """Write a product of matrices, or of a batch of pairs of them."""
    left, right = writer.cheap(left), writer.cheap(right)
    *batch, n, m = shape
    inner = left.shape[-1]
    array = writer.array(math.prod(shape))
    writer.arithmetic += math.prod(shape) * inner
    b, k = [Place("b") for _ in batch], Place("k")
    for rows, columns in _tiles(n, m):
        (i0, height), (j0, width) = rows, columns
        tile = [(i, j) for i in range(height[0]) for j in range(width[0])]
        name = {(i, j): f"s{i}{j}" for i, j in tile}
        row = [shifted(Place("i"), i0 + i) for i in range(height[0])]
        column = [shifted(Place("j"), j0 + j) for j in range(width[0])]
        lefts = "".join(f"V x{i} = {left.at([*b, row[i], k])}; " for i in range(height[0]))
        rights = "".join(f"V y{j} = {right.at([*b, k, column[j]])}; " for j in range(width[0]))
        sums = " ".join(f"{name[i, j]} += x{i} * y{j};" for i, j in tile)
        starts = " ".join(f"V {name[i, j]} = spread(0);" for i, j in tile)
        stores = " ".join(f"{entry(array, flat([*b, row[i], column[j]], shape))} = {name[i, j]};" for i, j in tile)
        loops = f"for (int i = 0; i < {height[1]}; i += {height[0]}) for (int j = 0; j < {width[1]}; j += {width[0]})"
        each = f"for (int b = 0; b < {math.prod(batch)}; b++) " if batch else ""
        body = f"{{ {starts} for (int k = 0; k < {inner}; k++) {{ {lefts}{rights}{sums} }} {stores} }}"
        writer.lines.append(f"{each}{loops} {body}")
    return writer.value(shape, array)


def _tiles(n: int, m: int) -> Any:
    """Yield a grid of blocks of rows and columns: ``(start, (size of a block, extent))`` of each."""
    width = min(_SIDE_BY_SIDE, m)
    height = min(max(1, 2 * _SIDE_BY_SIDE // max(width, 1)), n)
    for rows in cut(n, height):
        for columns in cut(m, width):
            yield rows, columns


def cut(n: int, size: int) -> list[tuple[int, tuple[int, int]]]:
    """Cut a range into blocks of a size and a rest: ``(start, (size of a block, extent))`` of each part."""
    whole = n - n % size if size else 0
    parts = [(0, (size, whole))] if whole else []
    return [*parts, (whole, (n - whole, n - whole))] if whole < n else parts


def _vector_product(writer: Writer, shape: Shape, left: Value, right: Value) -> Value:
    """Write ``mv`` and ``dot``."""
    n = left.shape[0] if len(left.shape) == 2 else 1
    inner = right.shape[0]
    matrix, column = writer.reshaped(left, (n, inner)), writer.reshaped(right, (inner, 1))
    return writer.reshaped(_product(writer, (n, 1), matrix, column), shape)


# ---- factorisations, of each matrix of a batch -------------------------------------------------------------------


def each_matrix(writer: Writer, shape: Shape, sides: int, call: Callable[[Place], str], cost: int) -> None:
    """Call a function of a header for each matrix; ``call`` takes the index of the matrix."""
    count = math.prod(shape[:sides] if sides else ())
    writer.arithmetic += count * cost
    writer.lines.append(f"for (int b = 0; b < {count}; b++) {call(Place('b'))};")


def part_of(value: Value, b: Place, size: int) -> str:
    """Return the part of an array that holds one matrix of a batch."""
    return f"PART({value.array}, {b} * {size}, {size})"


def _no_error(shape: Shape) -> Value:
    """Return the error code of torch's operators, always 0: failures give NaN here."""
    return number(0).broadcast(_batch(shape))


def _batch(shape: Shape) -> Shape:
    return shape[:-2]


def _factored(writer: Writer, matrix: Value, may_be_singular: bool = False) -> tuple[Value, Value]:
    """Write LU and its pivots; NaN for a singular matrix, where torch raises an error, unless it may be singular."""
    *batch, n, _ = matrix.shape
    lu, pivots = writer.copied(matrix), writer.value((*batch, n), writer.array(math.prod(batch) * n))
    call: Callable[[Place], str] = (  # noqa: E731
        lambda b: f"lu_factor({part_of(lu, b, n * n)}, {part_of(pivots, b, n)}, {n}, {int(may_be_singular)})"
    )
    each_matrix(writer, matrix.shape, len(batch), call, n**3)
    return lu, pivots


def _solved_by(writer: Writer, lu: Value, pivots: Value, right: Value, transposed: bool) -> Value:
    lu, pivots = writer.stored(lu), writer.stored(pivots)
    n, m = lu.shape[-1], right.shape[-1]
    shape = (*_batch(lu.shape), n, m)
    x = writer.copied(right.broadcast(shape))

    def call(b: Place) -> str:
        parts = f"{part_of(lu, b, n * n)}, {part_of(pivots, b, n)}, {part_of(x, b, n * m)}"
        return f"lu_solve({parts}, {n}, {m}, {int(transposed)})"

    each_matrix(writer, shape, len(shape) - 2, call, n * n * m)
    return x


def _lu_solve(
    writer: Writer, shape: Shape, lu: Value, pivots: Value, right: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    if left:
        return _solved_by(writer, lu, pivots, right, adjoint)
    solved = _solved_by(writer, lu, pivots, mirrored(right), not adjoint)
    return mirrored(solved)


def mirrored(x: Value) -> Value:
    *batch, n, m = x.shape
    return x.viewed((*batch, m, n), lambda i: [*i[:-2], i[-1], i[-2]])


@cache
def factors_transpose() -> frozenset[str]:
    """Return the operators that factor the transpose of a row-major matrix, as LAPACK reads it.

    Backward formulas use the factors that the forward operator returns. `torch.linalg.solve` is among these
    operators in some versions of torch (2.6) and not in others (2.13), so the installed torch is tested.
    """
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    of_solve, of_rows = torch._linalg_solve_ex(rows, rows)[1], torch.linalg.lu_factor(rows)[0]
    always = {"_linalg_det", "_linalg_slogdet"}
    return frozenset(always if torch.equal(of_solve, of_rows) else always | {"_linalg_solve_ex"})


def _solve_ex(
    writer: Writer,
    _: None,
    matrix: Value,
    right: Value,
    *,
    left: bool = True,
    check_errors: bool = False,
    transposed: bool = False,
) -> Any:
    vector = len(right.shape) < len(matrix.shape)
    columns = writer.reshaped(right, (*right.shape, 1)) if vector else right
    lu, pivots = _factored(writer, mirrored(matrix) if transposed else matrix)
    x = _lu_solve(writer, columns.shape, lu, pivots, columns, left=left, adjoint=transposed)
    return writer.reshaped(x, right.shape) if vector else x, lu, pivots, _no_error(matrix.shape)


def _inverse_ex(writer: Writer, _: None, matrix: Value, **__: object) -> Any:
    solved = _solved_by(writer, *_factored(writer, matrix), _identity(matrix.shape), False)
    return solved, _no_error(matrix.shape)


def _identity(shape: Shape) -> Value:
    return Value(shape, lambda index: f"spread({index[-2]} == {index[-1]})")


def _lu_factor_ex(writer: Writer, _: None, matrix: Value, **options: object) -> Any:
    if options.get("pivot", True) is not True or matrix.shape[-1] != matrix.shape[-2]:
        raise UnsupportedOperatorError("LU of a matrix that is not square")
    return (*_factored(writer, matrix), _no_error(matrix.shape))


def _over_diagonal(writer: Writer, lu: Value, start: str, step: str) -> Value:
    """Write ``s = start``, then ``s = step`` for each k of the diagonal ``d`` of LU."""
    n, batch = lu.shape[-1], _batch(lu.shape)
    array = writer.array(math.prod(batch))
    diagonal = entry(str(lu.array), f"b * {n * n} + k * {n + 1}")
    loop = f"V s = {start}; for (int k = 0; k < {n}; k++) {{ V d = {diagonal}; s = {step}; }} {entry(array, 'b')} = s;"
    writer.lines.append(f"for (int b = 0; b < {math.prod(batch)}; b++) {{ {loop} }}")
    return writer.value(batch, array)


def _turns(pivots: Value, n: int) -> str:
    return f"choose({entry(str(pivots.array), f'b * {n} + k')} == spread(k + 1), spread(1), spread(-1))"


def _slogdet(writer: Writer, _: None, matrix: Value, *, transposed: bool) -> Any:
    lu, pivots = _factored(writer, mirrored(matrix) if transposed else matrix, may_be_singular=True)
    sign = _over_diagonal(writer, lu, "spread(1)", f"s * v_sign(d) * {_turns(pivots, matrix.shape[-1])}")
    return sign, _over_diagonal(writer, lu, "spread(0)", "s + v_log(v_abs(d))"), lu, pivots


def _det(writer: Writer, _: None, matrix: Value, *, transposed: bool) -> Any:
    lu, pivots = _factored(writer, mirrored(matrix) if transposed else matrix, may_be_singular=True)
    return _over_diagonal(writer, lu, "spread(1)", f"s * d * {_turns(pivots, matrix.shape[-1])}"), lu, pivots


def _cholesky_ex(writer: Writer, _: None, matrix: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    n = matrix.shape[-1]
    lower = writer.copied(mirrored(matrix) if upper else matrix)
    call: Callable[[Place], str] = lambda b: f"cholesky({part_of(lower, b, n * n)}, {n})"  # noqa: E731
    each_matrix(writer, matrix.shape, len(matrix.shape) - 2, call, n**3)
    last = Place(str(n - 1))
    # A pivot that is not positive makes itself and all later ones NaN.
    failed = Value(_batch(matrix.shape), lambda i: f"v_isnan({lower.at([*i, last, last])})", computes=True)
    return (mirrored(lower) if upper else lower), failed


def _solve_triangular(
    writer: Writer,
    shape: Shape,
    matrix: Value,
    right: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    if not left:  # X A = B is AᵀXᵀ = Bᵀ
        turned = (*shape[:-2], shape[-1], shape[-2])
        options = {"upper": not upper, "unitriangular": unitriangular}
        return mirrored(_solve_triangular(writer, turned, mirrored(matrix), mirrored(right), **options))
    n, m = shape[-2:]
    triangle = writer.stored(matrix.broadcast((*_batch(shape), n, n)))
    x = writer.copied(right.broadcast(shape))
    function = "solve_upper" if upper else "solve_lower"

    def call(b: Place) -> str:
        return (
            f"{function}({part_of(triangle, b, n * n)}, {n}, 1, {part_of(x, b, n * m)}, {n}, {m}, {int(unitriangular)})"
        )

    each_matrix(writer, shape, len(shape) - 2, call, n * n * m)
    return x


def _triangular_solve(
    writer: Writer,
    _: None,
    right: Value,
    matrix: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    turned = mirrored(matrix) if transpose else matrix
    options = {"upper": upper != transpose, "unitriangular": unitriangular}
    return _solve_triangular(writer, right.shape, turned, right, **options), None


def _cholesky_solve(writer: Writer, shape: Shape, right: Value, factor: Value, upper: bool = False) -> Value:
    lower = writer.cheap(mirrored(factor) if upper else factor)
    half = _solve_triangular(writer, shape, lower, right, upper=False)
    return _solve_triangular(writer, shape, mirrored(lower), half, upper=True)


def _cholesky_inverse(writer: Writer, shape: Shape, factor: Value, upper: bool = False) -> Value:
    return _cholesky_solve(writer, shape, _identity(shape), factor, upper)


def _matrix_exp(writer: Writer, shape: Shape, matrix: Value) -> Value:
    n, batch = shape[-1], _batch(shape)
    matrix, result = writer.stored(matrix), writer.value(shape, writer.array(math.prod(shape)))
    spare, other = writer.array(n * n), writer.array(n * n)
    call: Callable[[Place], str] = (  # noqa: E731
        lambda b: f"matrix_exp({part_of(matrix, b, n * n)}, {part_of(result, b, n * n)}, {spare}, {other}, {n})"
    )
    each_matrix(writer, shape, len(batch), call, 20 * n**3)
    return result


def _eigh(writer: Writer, _: None, matrix: Value, uplo: str = "L", compute_v: bool = True) -> Any:
    """Write ``eigh``, by the lower triangle."""
    if uplo != "L":
        matrix = mirrored(matrix)
    *batch, n, _n = matrix.shape
    matrix, count = writer.cheap(matrix), math.prod(batch)
    lower = Value(matrix.shape, lambda i: matrix.at([*i[:-2], _larger(*i[-2:]), _smaller(*i[-2:])]))
    a, vectors = writer.copied(lower), writer.value(matrix.shape, writer.array(count * n * n))
    values = writer.value((*batch, n), writer.array(count * n))
    call: Callable[[Place], str] = (  # noqa: E731
        lambda b: f"eigh({part_of(a, b, n * n)}, {part_of(values, b, n)}, {part_of(vectors, b, n * n)}, {n})"
    )
    each_matrix(writer, matrix.shape, len(batch), call, 30 * n**3)
    return values, vectors


def _larger(i: Place, j: Place) -> Place:
    return Place(f"{i} > {j} ? {i} : {j}")


def _smaller(i: Place, j: Place) -> Place:
    return Place(f"{i} > {j} ? {j} : {i}")


def _nothing(*_: object, **__: object) -> None:
    """Ignore a check that raises in torch; failures give NaN here."""


TABLE: dict[str, Callable[..., Any]] = {
    "_linalg_check_errors": _nothing,
    "_linalg_det": _det,
    "_linalg_eigh": _eigh,
    "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _solve_ex,
    "bmm": _product,
    "cholesky_inverse": _cholesky_inverse,
    "cholesky_solve": _cholesky_solve,
    "dot": _vector_product,
    "linalg_cholesky_ex": _cholesky_ex,
    "linalg_inv_ex": _inverse_ex,
    "linalg_lu_factor_ex": _lu_factor_ex,
    "linalg_lu_solve": _lu_solve,
    "linalg_matrix_exp": _matrix_exp,
    "linalg_solve_triangular": _solve_triangular,
    "mm": _product,
    "mv": _vector_product,
    "triangular_solve": _triangular_solve,
}
