"""Files of tensors, numbers and strings: a NumPy archive with a JSON header, without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

VERSION = 1
_ABOUT = "about"


def write(path: str | Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a file atomically.

    Args:
        path: path of the file.
        kind: type of its content.
        tensors: tensors by name.
        about: further content that JSON can represent, and numbers of NumPy.
    """
    page = json.dumps({"kind": kind, "version": VERSION, **about}, default=float)
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    path = check_folder(path)
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **{_ABOUT: np.array(page)}, **arrays)
    os.replace(unfinished, path)


def check_folder(path: str | Path) -> Path:
    """Return the path of a file that exists or can be created.

    Raises:
        ValueError: if it is not a path, or is a folder.
        FileNotFoundError: if its folder does not exist.
    """
    if not isinstance(path, str | Path) or Path(path).is_dir():
        raise ValueError(f"{path!r}: expected the path of a file.")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} for {path.name}: create it first.")
    return path


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the JSON header of a file.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is damaged, or of another kind or version.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop(_ABOUT)))
        found = about.pop("kind"), about.pop("version")
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0].removesuffix(".")
        raise ValueError(f"{path} is damaged or not a {kind} ({reason}): restore it or write it again.") from error
    if found[0] != kind:
        raise ValueError(f"{path} contains a {found[0]}, expected a {kind}: pass another file.")
    if found[1] != VERSION:
        raise ValueError(
            f"{path} has version {found[1]!r}, expected {VERSION}: train the sampler again, or use the version of "
            "the package that wrote it."
        )
    return tensors, about
