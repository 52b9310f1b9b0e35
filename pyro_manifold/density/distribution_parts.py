"""Distributions within distributions, such as the base of an independent, masked or transformed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from torch.distributions import Distribution


def parts(distribution: Any) -> Iterable[Any]:
    """Yield a distribution and those that it wraps."""
    while isinstance(distribution, Distribution):
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def innermost(distribution: Any) -> Any:
    """Return the distribution inside of those that expand, mask or reinterpret it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution


def with_parts(distribution: Any, change: Callable[[Any], Any]) -> Any:
    """Return the distribution with those within it changed: a copy if any of them is, as it may be the user's."""
    own = {name: part for name, part in vars(distribution).items() if isinstance(part, Distribution)}
    replaced = {name: change(part) for name, part in own.items()}
    if all(replaced[name] is part for name, part in own.items()):
        return distribution
    distribution = copy(distribution)
    vars(distribution).update(replaced)
    return distribution
