"""Hashes of data that a log density does not show: initial values, and data that come in minibatches."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import hashlib
import pathlib
import types
from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.store.nested import array_of

_OF_DATA_SETS = ("dataset", "datasets", "tensors", "indices", "sampler", "weights")
"""Attributes in which torch's data loaders, data sets and samplers hold data."""

_WRITTEN_OUT = (
    *(bool, int, float, complex, str, range, slice, pathlib.PurePath, decimal.Decimal, fractions.Fraction),
    *(enum.Enum, datetime.date, datetime.time, datetime.timedelta, torch.dtype, torch.device, np.dtype),
)
"""Types whose ``repr`` contains the whole value."""

_THAT_FILL = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of modules that change at each forward pass."""

_DEEPEST = 100


def fingerprint(value: object) -> str:
    """Return a hash of the entries, data types, shapes and names in a value, equal in all processes.

    Args:
        value: tensors and arrays, numbers and strings, nested in Python containers, data classes, modules, and torch's
            data sets and data loaders. For any other object only the type and the length are hashed.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(value, ()):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, around: tuple[int, ...]) -> Iterator[Any]:
    """Yield a value as bytes; ``around`` are the ids of the enclosing objects, as an object may contain itself."""
    array_like = None if isinstance(value, type) else _as_array(value)
    if array_like is not None and not array_like.dtype.hasobject:
        yield f"array {array_like.dtype} {array_like.shape} ".encode()
        yield np.ascontiguousarray(array_like).reshape(-1).view(np.uint8).data
    elif value is None or isinstance(value, _WRITTEN_OUT):
        yield f"{value!r} ".encode()
    elif isinstance(value, type):
        yield f"type {value.__module__}.{value.__qualname__} ".encode()
    else:
        yield f"{type(value).__name__} {_length(value)} ".encode()
        if id(value) in around or len(around) == _DEEPEST:
            return
        inside = _inside(value) if array_like is None else list(array_like.flat)
        if isinstance(value, Set):
            yield from sorted(b"".join(map(bytes, _parts(part, (*around, id(value))))) for part in inside)
            return
        for part in inside:
            yield from _parts(part, (*around, id(value)))


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the entries of a tensor, an array, a data frame or bytes; None for an object without entries."""
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    try:
        if isinstance(value, Tensor):
            return None if value.is_nested else _numpy_array(value)
        has_numbers = isinstance(value, memoryview | array.array) or callable(getattr(value, "__array__", None))
        return np.asarray(value) if has_numbers else None
    except Exception:  # a type that neither NumPy nor torch can convert
        return None


def _numpy_array(value: Tensor) -> np.ndarray[Any, Any]:
    value = (value if value.layout == torch.strided else value.to_dense()).resolve_conj().resolve_neg().detach()
    try:
        return array_of(value)
    except (TypeError, RuntimeError):  # a data type that NumPy lacks
        return array_of(value.contiguous().view(torch.uint8))


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [part for key in sorted(value, key=str) for part in (str(key), value[key])]
    if isinstance(value, list | tuple | deque | Set):
        return list(value)
    if isinstance(value, Tensor):  # nested, or without accessible entries, such as a meta tensor
        return list(value.unbind()) if value.is_nested else [tuple(value.shape), value.dtype]
    if isinstance(value, torch.nn.Module):
        buffers = {name: x for name, x in value.named_buffers() if not name.endswith(_THAT_FILL)}
        return [dict(value.named_parameters()), buffers]
    if isinstance(value, types.SimpleNamespace):
        return [vars(value)]
    if is_dataclass(value):
        return [{each.name: getattr(value, each.name, None) for each in fields(value) if each.compare}]
    found = []
    for name in _OF_DATA_SETS:
        with suppress(Exception):  # an attribute of a user's class can fail in any way
            found.append(getattr(value, name))
    return found


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # it has no length, or is a data loader over an iterable data set
        return None
