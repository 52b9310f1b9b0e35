"""Parameters of tests: those that the short set needs, and the others, which are long."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_except(values: Iterable[Any], *short: Any) -> list[Any]:
    """Mark all values as long but these, which are the cheapest that can fail."""
    values = list(values)
    unknown = [value for value in short if value not in values]
    if unknown:
        raise ValueError(f"long_except: {unknown} are not among {values}.")
    return [value if value in short else pytest.param(value, marks=pytest.mark.long) for value in values]
