"""Checks of arguments shared by several kernels."""

from __future__ import annotations

import math
from numbers import Integral, Real


def is_a(kind: type, value: object) -> bool:
    """Check the type of a value as `isinstance` does, but do not count booleans as numbers.

    The type is passed as ``type``, since type checkers do not accept floats as instances of `Real`.
    """
    return isinstance(value, kind) and not isinstance(value, bool)


def check_positive(**arguments: object) -> None:
    """Raise an error unless each argument is a positive finite number."""
    for name, value in arguments.items():
        if not (is_a(Real, value) and 0 < value < math.inf):  # type: ignore[operator]
            raise ValueError(f"{name}={value!r}, expected a positive number.")


def check_positive_integer(**arguments: object) -> None:
    """Raise an error unless each argument is a positive integer."""
    check_positive(**arguments)
    for name, value in arguments.items():
        if not is_a(Integral, value):
            raise ValueError(f"{name}={value!r}, expected an integer.")


def check_share(*, open_above: bool, **arguments: object) -> None:
    """Raise an error unless each argument is in [0, 1], or in [0, 1) if ``open_above``."""
    for name, value in arguments.items():
        if not (is_a(Real, value) and 0 <= value <= 1) or (open_above and value == 1):  # type: ignore[operator]
            raise ValueError(f"{name}={value!r}, expected a number in [0, 1{')' if open_above else ']'}.")


def check_counts(**counts: object) -> None:
    """Raise an error unless each argument is an integer of at least 1."""
    for name, value in counts.items():
        if not is_a(Integral, value) or value < 1:  # type: ignore[operator]
            raise ValueError(f"{name}={value!r}, expected a positive integer.")
