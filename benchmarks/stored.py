"""Files of results: written whole or not at all, and read with one sentence if damaged or made with other settings."""

import json
import os
import zlib
from pathlib import Path

import torch


def write_whole(path, write):
    """Make a file atomically, and its folder, by ``write(file)`` on a binary file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        write(file)
    os.replace(unfinished, path)


def write_json(path, content):
    """Write a file atomically."""
    write_whole(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def read_json(path):
    """Read a file; SystemExit if it is damaged."""
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:
        raise SystemExit(f"{path} is damaged ({error}): delete it.") from error


def kept(path, key, make):
    """Result of ``make()``, from a JSON file that has it under a key or gets it; without a file if ``path`` is None."""
    found = read_json(path) if path is not None and Path(path).exists() else {}
    if key not in found:
        found[key] = make()
        if path is not None:
            write_json(path, found)
    return found[key]


def write_state(path, content):
    """Write tensors and numbers atomically."""
    write_whole(path, lambda file: torch.save(content, file))


def read_state(path):
    """Read tensors and numbers; SystemExit if the file is damaged."""
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        raise SystemExit(f"{path} is damaged ({str(error).splitlines()[0]}): delete it.") from error


def checksum(*tensors):
    """Checksum of data, by which a stored run is recognised."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), total)
    return f"{total:08x}"


def check_settings(path, found, wanted):
    """SystemExit unless the settings of a stored run are those wanted."""
    for name, value in wanted.items():
        if found.get(name) != value:
            raise SystemExit(
                f"{path} has a run with {name} {found.get(name)!r}, this one has {value!r}: use another --store, or "
                "delete the file."
            )
