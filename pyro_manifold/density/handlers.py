"""Effect handlers of Pyro, which a process has in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import pyro
from pyro import poutine
from pyro.util import optional

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_lock = threading.RLock()


def _new_lock() -> None:
    """Give a forked process a lock of its own, since no other thread of its parent exists there to release that one."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def one_thread_at_a_time(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make a function wait for other threads that run models, since these would see each other's handlers."""

    @wraps(function)
    def alone(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with _lock:
            return function(*args, **kwargs)

    return alone


@contextmanager
def models_run(disable_validation: bool | None) -> Iterator[None]:
    """Run models for themselves: out of the reach of handlers around the call, and one thread at a time.

    Args:
        disable_validation: of parameters and values of distributions; None to leave that as it is.
    """
    validation = optional(pyro.validation_enabled(not disable_validation), disable_validation is not None)
    with _lock, poutine.block(), validation:
        yield
