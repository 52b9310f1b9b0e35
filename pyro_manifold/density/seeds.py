"""Seeds of several random number streams, derived from one seed."""

from __future__ import annotations


def seed_of(seed: int, *numbers: int) -> int:
    """Return a seed for each tuple of numbers, far from each other."""
    for number in numbers:
        seed = (seed * 6364136223846793005 + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63
    return seed
