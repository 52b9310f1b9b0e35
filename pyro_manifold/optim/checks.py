"""Checks of the options of optimisers."""

from __future__ import annotations


def check_at_least_zero(owner: str, **values: float) -> None:
    """Raise ValueError for a learning rate or an offset that is not at least 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{owner}: {name}={value}, expected a number ≥ 0.")


def check_decay(owner: str, **values: float) -> None:
    """Raise ValueError for a decay rate of a running mean that is not in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{owner}: {name}={value}, expected a number in [0, 1).")
