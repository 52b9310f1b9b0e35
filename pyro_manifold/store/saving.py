"""Checkpoints: conversion of mutable state to tensors, numbers and strings, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

Serialisable = Any
"""Tensors, numbers and strings, and dictionaries of these with string keys."""


class Saved:
    """Base class with `state_dict`; the mutable state is the attributes listed in ``changing``."""

    changing: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the mutable attributes as tensors, numbers and strings."""
        return {name: plain(getattr(self, name)) for name in self.changing}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore the state of a saved object, which must have been constructed with the same arguments.

        Raises:
            ValueError: if the saved state does not match this object.
        """
        check_entries(saved, self.changing, type(self).__name__)
        for name in self.changing:
            setattr(self, name, restored(getattr(self, name), saved[name], f"{type(self).__name__}.{name}"))


def check_entries(saved: Serialisable, names: Iterable[str], owner: str) -> None:
    """Raise an error unless the saved state is a dictionary with at least these entries."""
    if not isinstance(saved, dict):
        raise ValueError(f"The saved state of {owner} is {saved!r}, expected a dictionary as returned by state_dict().")
    missing = sorted(set(names) - set(saved))
    if missing:
        raise ValueError(f"The saved state of {owner} lacks {missing}: pass the result of state_dict().")


def plain(value: Any) -> Serialisable:
    """Convert a value to tensors, numbers and strings."""
    if isinstance(value, Saved):
        return value.state_dict()
    if isinstance(value, Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return {name: plain(part) for name, part in _entries(value).items()}
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be saved: expected tensors, numbers and strings.")


def _entries(value: tuple[Any, ...]) -> dict[str, Any]:
    """Return the elements of a tuple by field name, or by index if it has no fields."""
    names = getattr(value, "_fields", [str(index) for index in range(len(value))])
    return dict(zip(names, value, strict=True))


def restored(like: Any, saved: Serialisable, name: str) -> Any:
    """Return a saved value with the type, structure and device of an example.

    Raises:
        ValueError: if the two do not match; the message names the entry.
    """
    if isinstance(like, Saved):
        like.load_state_dict(saved)
        return like
    if isinstance(like, Tensor):
        if not isinstance(saved, Tensor) or saved.shape != like.shape or saved.dtype != like.dtype:
            found = f"{saved.dtype} {tuple(saved.shape)}" if isinstance(saved, Tensor) else repr(saved)
            raise ValueError(
                f"The saved '{name}' is {found}, but this run has {like.dtype} {tuple(like.shape)}: restore into a run "
                "of the same model, data and number of chains (a tensor named in 'changing' keeps its shape and dtype)."
            )
        return saved.to(like.device, copy=True)
    if isinstance(like, dict | tuple):
        check_entries(saved, (), name)
        keyed = like if isinstance(like, dict) else _entries(like)
        if sorted(saved) != sorted(map(str, keyed)):
            raise ValueError(
                f"The saved '{name}' has the entries {sorted(saved)}, but this run has {sorted(map(str, keyed))}: "
                "restore into a run of the same model and kernel."
            )
        values = {key: restored(part, saved[str(key)], f"{name}: {key}") for key, part in keyed.items()}
        if isinstance(like, dict):
            return values
        return type(like)(*values.values()) if hasattr(like, "_fields") else tuple(values.values())
    if type(saved) is not type(like) and not (type(like) is float and type(saved) is int):
        raise ValueError(f"The saved '{name}' is {saved!r}, expected {type(like).__name__}.")
    if isinstance(like, str) and saved != like:
        raise ValueError(f"The saved '{name}' is {saved!r}, but this run has {like!r}.")
    if isinstance(like, float) and not math.isfinite(saved):
        raise ValueError(f"The saved '{name}' is {saved}, expected a finite number.")
    return type(like)(saved)
