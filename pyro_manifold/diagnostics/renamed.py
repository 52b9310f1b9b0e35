"""Arguments that were renamed: the old name works, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator of functions that also accept the argument ``new`` by its old name, with a FutureWarning.

    Examples:
        >>> @renamed_argument("colour", "color")
        ... def draw(color):
        ...     return color
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     draw(colour="red"), str(caught[0].message)
        ('red', 'draw: colour= is now color=; the old name will be removed.')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{name}: {old}= is the old name of {new}=; give {new}= only.")
                warnings.warn(
                    f"{name}: {old}= is now {new}=; the old name will be removed.", FutureWarning, stacklevel=2
                )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
