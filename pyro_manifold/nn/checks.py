"""Checks of the arguments of layers; each raises one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch


def check_counts(owner: str, **arguments: object) -> None:
    """Raise ValueError for an argument that is not a positive integer."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{owner}: {name}={value!r}, expected a positive integer.")


def check_positive(owner: str, **arguments: object) -> None:
    """Raise ValueError for an argument that is not a positive finite number."""
    for name, value in arguments.items():
        if not is_positive(value):
            raise ValueError(f"{owner}: {name}={value!r}, expected a positive number.")


def is_positive(value: object) -> bool:
    """Return whether a value is a positive finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def check_gain(owner: str, gain: Any) -> None:
    """Raise ValueError unless the gain is a positive number, or a distribution of one."""
    if is_positive(gain):
        return
    if not (hasattr(gain, "sample") and hasattr(gain, "log_prob") and hasattr(gain, "has_enumerate_support")):
        raise ValueError(
            f"{owner}: gain={gain!r}, expected a positive number or a distribution of one, such as LogNormal(0.0, 0.5)."
        )
    if gain.batch_shape + gain.event_shape != ():
        raise ValueError(
            f"{owner}: gain has draws of shape {tuple(gain.batch_shape + gain.event_shape)}, expected one number for "
            "the layer, of shape ()."
        )
    if gain.support.check(torch.tensor(-1.0)).any():
        raise ValueError(f"{owner}: gain={gain!r} can be negative, expected positive numbers, such as by LogNormal.")


def as_pair(owner: str, name: str, value: int | Sequence[int], least: int = 1) -> tuple[int, int]:
    """Return two integers from one or two; raise ValueError for anything else."""
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if len(pair) != 2 or not all(isinstance(each, int) and each >= least for each in pair):
        raise ValueError(f"{owner}: {name}={value!r}, expected an integer or two, each at least {least}.")
    return pair[0], pair[1]
