"""Nested dictionaries of tensors, numbers and strings as arrays and JSON, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.store.archive import Archive, Array, DamagedError

_AS_INTEGERS = {torch.bfloat16: torch.int16}
"""Data types that NumPy lacks, and integer types of the same size in which their bits are stored."""

_TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def array_of(value: Tensor) -> Array:
    """Return the entries of a tensor as an array on the CPU."""
    value = value.detach().cpu()
    stored: Array = value.view(_AS_INTEGERS[value.dtype]).numpy() if value.dtype in _AS_INTEGERS else value.numpy()
    return stored


def tensor_of(array: Array) -> Tensor:
    """Return an array as a tensor, which shares its memory if that is aligned and writeable."""
    return torch.from_numpy(array if array.flags.aligned and array.flags.writeable else np.array(array))


def flattened(value: Any, arrays: dict[str, Array]) -> Any:
    """Return a value as a JSON tree; its tensors are added to ``arrays`` under consecutive numbers."""
    if isinstance(value, dict):
        return {"parts": {name: flattened(part, arrays) for name, part in value.items()}}
    if isinstance(value, Tensor):
        name = f"{len(arrays)}"
        arrays[name] = array_of(value)
        return {"tensor": name, "dtype": str(value.dtype).removeprefix("torch.")}
    return {"value": value}


def unflattened(tree: Any, archive: Archive) -> Any:
    """Rebuild a value from a JSON tree: the inverse of `flattened`.

    Raises:
        DamagedError: if the tree and the archive do not match.
    """
    if isinstance(tree, dict) and isinstance(tree.get("parts"), dict):
        return {name: unflattened(part, archive) for name, part in tree["parts"].items()}
    if isinstance(tree, dict) and "value" in tree and isinstance(tree["value"], bool | int | float | str):
        return tree["value"]
    if isinstance(tree, dict) and isinstance(tree.get("tensor"), str) and tree.get("dtype") in _TYPES:
        value = torch.from_numpy(np.array(archive[tree["tensor"]]))
        dtype = _TYPES[tree["dtype"]]
        if value.dtype != _AS_INTEGERS.get(dtype, dtype):
            raise DamagedError(f"{archive.path}: array {tree['tensor']} is not of type {tree['dtype']}: it is damaged.")
        return value.view(dtype)
    raise DamagedError(f"{archive.path}: {str(tree)[:60]!r} is not a part of a saved run: it is damaged.")
