"""Sentences for options out of range."""

from __future__ import annotations


def check_at_least_zero(owner: str, **values: float) -> None:
    """Learning rates and offsets."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{owner}: {name}={value}, expected a number ≥ 0.")


def check_decay(owner: str, **values: float) -> None:
    """Shares of the past that a running mean keeps."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{owner}: {name}={value}, expected a number in [0, 1).")
