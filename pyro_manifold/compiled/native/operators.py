"""The table from ATen operators to C.

Operators that are not in it have `decompositions`, most of them from torch. A new operator is a line in one of the
tables here, and a case in ``tests/compiled/native/test_operators.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pyro_manifold.compiled.native import factors, indexing, matrices, reductions, sorting, special
from pyro_manifold.compiled.native.values import (
    Index,
    Place,
    Shape,
    UnsupportedOperatorError,
    Value,
    entry,
    number,
    shifted,
    stepped,
    strided,
)
from pyro_manifold.compiled.native.writer import Writer

Emitter = Callable[..., Any]
"""Function from a writer, the shape of the result and the operator's arguments to the result, or several."""


class Operator(NamedTuple):
    """Translation of an operator to C.

    Attributes:
        emit: function that writes it.
        reads_once: whether it reads each element of its operands once, so that they need not be stored before.
    """

    emit: Emitter
    reads_once: bool = False


ELEMENTWISE = {
    "abs": "v_abs({0})",
    "acos": "v_acos({0})",
    "acosh": "v_acosh({0})",
    "asin": "v_asin({0})",
    "asinh": "v_asinh({0})",
    "atan": "v_atan({0})",
    "atan2": "v_atan2({0}, {1})",
    "atanh": "v_atanh({0})",
    "bitwise_and": "v_and({0}, {1})",
    "bitwise_not": "truth({0} == spread(0))",
    "bitwise_or": "v_or({0}, {1})",
    "ceil": "v_ceil({0})",
    "cos": "v_cos({0})",
    "cosh": "v_cosh({0})",
    "div": "{0} / {1}",
    "eq": "truth({0} == {1})",
    "erf": "v_erf({0})",
    "erfc": "v_erfc({0})",
    "exp": "v_exp({0})",
    "exp2": "v_exp2({0})",
    "expm1": "v_expm1({0})",
    "floor": "v_floor({0})",
    "fmod": "v_fmod({0}, {1})",
    "ge": "truth({0} >= {1})",
    "gt": "truth({0} > {1})",
    "isfinite": "v_isfinite({0})",
    "isinf": "v_isinf({0})",
    "isnan": "v_isnan({0})",
    "le": "truth({0} <= {1})",
    "log": "v_log({0})",
    "log10": "v_log10({0})",
    "log1p": "v_log1p({0})",
    "log2": "v_log2({0})",
    "logical_and": "v_and({0}, {1})",
    "logical_not": "truth({0} == spread(0))",
    "logical_or": "v_or({0}, {1})",
    "logical_xor": "truth(({0} != spread(0)) != ({1} != spread(0)))",
    "lt": "truth({0} < {1})",
    "masked_fill": "v_where({1}, {2}, {0})",
    "maximum": "v_max({0}, {1})",
    "minimum": "v_min({0}, {1})",
    "mul": "{0} * {1}",
    "ne": "truth({0} != {1})",
    "neg": "-{0}",
    "reciprocal": "spread(1) / {0}",
    "relu": "v_relu({0})",
    "remainder": "v_remainder({0}, {1})",
    "round": "v_rint({0})",
    "rsqrt": "spread(1) / v_sqrt({0})",
    "sigmoid": "v_sigmoid({0})",
    "sign": "v_sign({0})",
    "sin": "v_sin({0})",
    "sinh": "v_sinh({0})",
    "sqrt": "v_sqrt({0})",
    "tan": "v_tan({0})",
    "tanh": "v_tanh({0})",
    "trunc": "v_trunc({0})",
    "where": "v_where({0}, {1}, {2})",
    **special.ELEMENTWISE,
}
"""Elementwise functions: each operand appears once, since its expression may be long."""

_POWERS = {
    0.5: "v_sqrt({0})",
    1: "{0}",
    2: "v_square({0})",
    3: "v_cube({0})",
    -0.5: "spread(1) / v_sqrt({0})",
    -1: "spread(1) / {0}",
    -2: "spread(1) / v_square({0})",
}


def mapped(shape: Shape, template: str, *operands: object) -> Value:
    """Apply a function elementwise to operands, with broadcasting."""
    values = [operand if isinstance(operand, Value) else number(_number(operand)) for operand in operands]
    views = [value.broadcast(shape) for value in values]

    def at(index: Index) -> str:
        return f"({template.format(*[view.at(index) for view in views])})"

    return Value(shape, at, computes=True, depth=1 + max((view.depth for view in views), default=0))


def _number(operand: object) -> float:
    if not isinstance(operand, int | float):
        raise UnsupportedOperatorError(f"an operand of type {type(operand).__name__}")
    return operand


def _elementwise(template: str) -> Emitter:
    count = 1 + max(k for k in range(3) if f"{{{k}}}" in template)

    def emit(_: Writer, shape: Shape, *operands: object, **options: object) -> Value:
        if len(operands) != count or any(option is not None for option in options.values()):
            raise UnsupportedOperatorError(f"unusual options of {template}")
        return mapped(shape, template, *operands)

    return emit


def _sum_of_two(sign: str) -> Emitter:
    def emit(_: Writer, shape: Shape, left: object, right: object, alpha: float = 1) -> Value:
        scaled = "{1}" if alpha == 1 else "{1} * {2}"
        return mapped(shape, f"{{0}} {sign} {scaled}", left, right, *([] if alpha == 1 else [alpha]))

    return emit


def _sum_with_product(sign: str) -> Emitter:
    """Return the emitter of ``addcmul`` or ``addcdiv``."""

    def emit(_: Writer, shape: Shape, x: Value, left: Value, right: Value, *, value: float = 1) -> Value:
        scaled = "{1}" if value == 1 else "{3} * {1}"
        return mapped(shape, f"{{0}} + {scaled} {sign} {{2}}", x, left, right, *([] if value == 1 else [value]))

    return emit


def _power(_: Writer, shape: Shape, base: object, exponent: object) -> Value:
    if isinstance(exponent, int | float) and exponent in _POWERS:
        return mapped(shape, _POWERS[exponent], base)
    return mapped(shape, "v_pow({0}, {1})", base, exponent)


def _clamp(_: Writer, shape: Shape, x: Value, least: object = None, most: object = None) -> Value:
    bounded = x if least is None else mapped(shape, "v_max({0}, {1})", x, least)
    return bounded if most is None else mapped(shape, "v_min({0}, {1})", bounded, most)


def _divided(_: Writer, shape: Shape, left: object, right: object, *, rounding_mode: str | None = None) -> Value:
    return mapped(shape, special.quotient(rounding_mode), left, right)


def _rounded(_: Writer, shape: Shape, x: Value, *, decimals: int = 0) -> Value:
    return mapped(shape, special.rounded(decimals), x)


def _polygamma(_: Writer, shape: Shape, order: int, x: Value) -> Value:
    return mapped(shape, special.polygamma(order), x)


# ---- views -------------------------------------------------------------------------------------------------------


def _same(_: Writer, shape: Shape, x: Value | float, *__: object, **___: object) -> Value:
    return x if isinstance(x, Value) else number(x)


def _reshaped(writer: Writer, shape: Shape, x: Value, *_: object) -> Value:
    return writer.reshaped(x, shape)


def _expanded(_: Writer, shape: Shape, x: Value, *__: object, **___: object) -> Value:
    return x.broadcast(shape)


def _permuted(_: Writer, shape: Shape, x: Value, order: list[int]) -> Value:
    places = {d % len(shape): k for k, d in enumerate(order)}
    return x.viewed(shape, lambda index: [index[places[d]] for d in range(len(shape))])


def _transposed(writer: Writer, shape: Shape, x: Value, first: int = 0, second: int = 1) -> Value:
    order = list(range(len(shape)))
    if len(order) > 1:
        order[first], order[second] = order[second], order[first]
    return _permuted(writer, shape, x, order)


def _sliced(
    _: Writer, shape: Shape, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim %= len(shape)
    first = range(x.shape[dim])[slice(start, None)].start if x.shape[dim] else 0
    return x.viewed(shape, lambda i: [*i[:dim], shifted(strided(i[dim], step), first), *i[dim + 1 :]])


def _selected(_: Writer, shape: Shape, x: Value, dim: int, position: int) -> Value:
    dim %= len(x.shape)
    return x.viewed(shape, lambda i: [*i[:dim], Place(str(position % x.shape[dim])), *i[dim:]])


def _split(_: Writer, __: None, x: Value, sizes: int | list[int], dim: int = 0) -> list[Value]:
    dim %= len(x.shape)
    if isinstance(sizes, int):
        sizes = [min(sizes, x.shape[dim] - start) for start in range(0, x.shape[dim], sizes)]
    parts = []
    for k, size in enumerate(sizes):
        start = sum(sizes[:k])
        parts.append(_sliced(_, (*x.shape[:dim], size, *x.shape[dim + 1 :]), x, dim, start))
    return parts


def _unbound(_: Writer, __: None, x: Value, dim: int = 0) -> list[Value]:
    dim %= len(x.shape)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return [_selected(_, shape, x, dim, k) for k in range(x.shape[dim])]


def _strided(writer: Writer, shape: Shape, x: Value, size: object, stride: list[int], offset: int = 0) -> Value:
    array = str(writer.stored(x).array)
    return Value(shape, lambda index: entry(array, stepped(index, stride, offset or 0)))


OF_STORAGE = {"as_strided": 1, "as_strided_scatter": 2}
"""Operators on the storage of their first argument, and the position of their size argument."""


def _filled(_: Writer, shape: Shape, __: Value, value: Value | float) -> Value:
    return (value if isinstance(value, Value) else number(value)).broadcast(shape)


def _filled_with(value: float) -> Emitter:
    return lambda _, shape, *__, **___: number(value).broadcast(shape)


_VIEWS: dict[str, Emitter] = {
    "_new_zeros_with_same_feature_meta": _filled_with(0),
    "_to_copy": _same,
    "_unsafe_view": _reshaped,
    "alias": _same,
    "as_strided": _strided,
    "clone": _same,
    "copy": lambda _, shape, __, source, **___: source.broadcast(shape),
    "detach": _same,
    **dict.fromkeys(("empty_like", "new_empty", "new_empty_strided"), _filled_with(0)),  # overwritten by a copy
    "expand": _expanded,
    "fill": _filled,
    "full_like": lambda _, shape, __, value, **___: number(value).broadcast(shape),
    "lift_fresh_copy": _same,
    "ones_like": _filled_with(1),
    "permute": _permuted,
    "reshape": _reshaped,
    "scalar_tensor": _same,
    "select": _selected,
    "slice": _sliced,
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": _reshaped,
    "t": _transposed,
    "transpose": _transposed,
    "unbind": _unbound,
    "unsqueeze": _reshaped,
    "view": _reshaped,
    "zeros_like": _filled_with(0),
}

OPERATORS: dict[str, Operator] = {
    **{name: Operator(_elementwise(template), reads_once=True) for name, template in ELEMENTWISE.items()},
    "add": Operator(_sum_of_two("+"), reads_once=True),
    "sub": Operator(_sum_of_two("-"), reads_once=True),
    "pow": Operator(_power, reads_once=True),
    "addcmul": Operator(_sum_with_product("*"), reads_once=True),
    "addcdiv": Operator(_sum_with_product("/"), reads_once=True),
    "clamp": Operator(_clamp, reads_once=True),
    "div": Operator(_divided, reads_once=True),
    "polygamma": Operator(_polygamma, reads_once=True),
    "round": Operator(_rounded, reads_once=True),
    **{name: Operator(emit, reads_once=True) for name, emit in _VIEWS.items()},
    **{name: Operator(emit, reads_once=True) for name, emit in reductions.TABLE.items()},
    **{name: Operator(emit) for name, emit in indexing.TABLE.items()},
    **{name: Operator(emit) for name, emit in matrices.TABLE.items()},
    **{name: Operator(emit) for name, emit in sorting.TABLE.items()},
    **{name: Operator(emit) for name, emit in factors.TABLE.items()},
}
"""Operators by name, for all overloads."""
