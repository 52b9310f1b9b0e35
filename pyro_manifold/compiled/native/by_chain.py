"""Gather and scatter by indices that each chain computes, such as those of sorted or largest values.

Expressions here are in a loop over the lanes of a vector, whose counter is `lane`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyro_manifold.compiled.native.values import Index, Place, Shape, Value, entry, flat

_EACH_LANE = "for (int lane = 0; lane < W; lane++)"

Condition = Callable[[Index], str]
"""Function from an index into an array of indices to an expression in C, whether that entry is a valid index."""


def place(index: Value, i: Index, size: int) -> Place:
    """Return the place of an index that a chain computes, clamped to the size; see `exists`."""
    return Place(f"within(LANE({index.at(i)}, lane), {size})")


def exists(index: Value, i: Index, size: int) -> str:
    """Return an expression, whether an index that a chain computes is in range; torch raises an error if not."""
    return f"is_within(LANE({index.at(i)}, lane), {size})"


def picked(x: Value, shape: Shape, index_of: Callable[[Index], Index], condition: Condition) -> Value:
    """Return elements of x, NaN where an index is out of range; reading x must not involve arithmetic."""

    def at(index: Index) -> str:
        element = f"LANE({x.at(index_of(index))}, lane)"
        return f"({{ V picked; {_EACH_LANE} LANE(picked, lane) = {condition(index)} ? {element} : NAN; picked; }})"

    return Value(shape, at, computes=True, depth=x.depth + 1)


def put(
    array: str, shape: Shape, index_of: Callable[[Index], Index], condition: Condition, values: Value, sign: str
) -> Callable[[Index], str]:
    """Return statements that assign or add a value at a place of an array; NaN at the nearest place if out of range.

    Args:
        array: array that is written to.
        shape: shape of the array.
        index_of: function from the index of a value to its place.
        condition: whether that place exists.
        values: values to assign or add.
        sign: ``=`` or ``+=``.
    """

    def body(index: Index) -> str:
        element = f"LANE({entry(array, flat(index_of(index), shape))}, lane)"
        stored = f"{element} {sign} {condition(index)} ? LANE(put, lane) : NAN;"
        return f"V put = {values.at(index)}; {_EACH_LANE} {stored}"

    return body
