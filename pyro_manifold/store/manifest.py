"""Manifest of a stored run: enough to read the draws without the model, and to recognise the run when it continues."""

from __future__ import annotations

import json
import math
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pyro_manifold.store.files import write_durably
from pyro_manifold.version import __version__

FORMAT = 3
"""Version of the file format. Draws of all versions can be read; a run can be continued only in its own version, since
earlier checkpoints do not record the density (format 1) or the meaning of positions (format 2)."""

_NAME = "manifest.json"
_LARGEST = 2**26
_MOST = 2**40  # entries in one draw of a site of all chains; larger sizes could not be counted in bytes
_MOST_CHAINS = 2**24
_KINDS = "biufc"


class Site(NamedTuple):
    """Data type and shape of the draws of a site.

    Attributes:
        dtype: NumPy's name of the data type.
        shape: shape of one draw of one chain.
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """Description of a run that does not change while the run is in progress.

    Attributes:
        identity: unique identifier of the run, repeated in every file of the run.
        sites: the sites that are sampled.
        chains: number of chains.
        warmup_steps: number of warm-up iterations, in which the kernel adapts.
        thinning: number of iterations for each stored draw.
        settings: settings of the kernel, as strings.
        parts: descriptions, by name, of other inputs of the run that its density does not show.
        seed: torch's seed when the run began.
        versions: versions of the programs that began the run.
        machine: properties of the machine on which rounding may depend.
        format: version of the file format.
    """

    identity: str
    sites: dict[str, Site]
    chains: int
    warmup_steps: int
    thinning: int
    settings: dict[str, str]
    parts: dict[str, str]
    seed: int
    versions: dict[str, str]
    machine: dict[str, str]
    format: int = FORMAT

    def difference(self, other: Manifest) -> str | None:
        """Describe the differences for which another run cannot continue this one; None if there are none."""
        if self.format != other.format:
            return f"an earlier version wrote it, in format {self.format}, whose draws can only be read, by open_run"
        pairs: list[tuple[str, object, object]] = [
            *_pairs("version of", self.versions, other.versions, ("pyro_manifold",)),
            *_pairs("", self.parts, other.parts),
            *_pairs("the kernel's", self.settings, other.settings),
            ("chains", self.chains, other.chains),
            ("warmup_steps", self.warmup_steps, other.warmup_steps),
            ("thinning", self.thinning, other.thinning),
            *_pairs("the site", _as_strings(self.sites), _as_strings(other.sites)),
        ]
        found = [f"{name} was {before}, and is {after}" for name, before, after in pairs if before != after]
        return "; ".join(found[:3]) if found else None

    def rounding_difference(self, other: Manifest) -> str | None:
        """Describe the differences to another run that may change its draws by rounding; None if there are none."""
        here, there = ({**each.machine, "torch": each.versions.get("torch", "?")} for each in (self, other))
        found = [
            f"{name} was {here.get(name)}, and is {there.get(name)}"
            for name in sorted({*here, *there})
            if here.get(name) != there.get(name)
        ]
        return "; ".join(found) if found else None

    def write(self, folder: Path) -> None:
        """Write the manifest to a folder."""
        write_durably({folder / _NAME: json.dumps(asdict(self), indent=1).encode()})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder.

        Raises:
            ValueError: if there is none, or it has invalid values; the message names them.
        """
        values = read_json(folder / _NAME)
        try:
            return cls(**_checked(values))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{folder / _NAME} is damaged or was tampered with: {error}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of this format as a dictionary.

    Raises:
        ValueError: if there is none.
    """
    if not path.is_file():
        raise ValueError(f"There is no stored run in '{path.parent}': it has no {path.name}.")
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any such file")
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    found = values.get("format") if isinstance(values, dict) else None
    if type(found) is not int or not 1 <= found <= FORMAT:
        raise ValueError(
            f"{path} has the format {str(found)[:40]}, expected 1 to {FORMAT}: read it with the version that wrote it."
        )
    return values


def holds_a_run(folder: Path) -> bool:
    """Return whether a folder has a manifest."""
    return (folder / _NAME).exists()


def new_identity() -> str:
    """Return a new unique identifier, a UUID in hexadecimal."""
    return uuid.uuid4().hex


def versions() -> dict[str, str]:
    """Return the versions of the programs on which draws depend."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"pyro_manifold": __version__, "python": python, "torch": str(torch.__version__)}


def machine() -> dict[str, str]:
    """Return the properties of the machine on which rounding may depend."""
    return {
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def _pairs(
    kind: str, before: Mapping[str, str], after: Mapping[str, str], names: tuple[str, ...] | None = None
) -> list[tuple[str, object, object]]:
    listed = names or sorted({*before, *after})
    # The name of the kernel is one of its settings.
    names_of = {name: "the kernel" if name == "kernel" else f"{kind} {name}".strip() for name in listed}
    return [(names_of[name], before.get(name, "none"), after.get(name, "none")) for name in listed]


def _as_strings(sites: Mapping[str, Site]) -> dict[str, str]:
    return {name: f"{site.dtype} {site.shape}" for name, site in sites.items()}


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return validated arguments of `Manifest`; raise ValueError for impossible values."""
    strings = {name: _strings(values, name) for name in ("settings", "parts", "versions", "machine")}
    counts = {name: _count(values, name) for name in ("chains", "warmup_steps", "thinning", "seed")}
    if not counts["chains"] or not counts["thinning"] or counts["chains"] > _MOST_CHAINS:
        raise ValueError(f"it has {counts['chains']} chains and a thinning of {counts['thinning']}")
    identity = values["identity"]
    if not isinstance(identity, str) or len(identity) != 32 or not identity.isalnum():
        raise ValueError(f"its identity is {str(identity)[:40]!r}")
    if not isinstance(values["sites"], dict):
        raise ValueError("its sites are not a dictionary")
    sites = {name: _site(name, site, counts["chains"]) for name, site in values["sites"].items()}
    return {**strings, **counts, "identity": identity, "sites": sites, "format": values["format"]}


def _strings(values: dict[str, Any], name: str) -> dict[str, str]:
    found = values[name]
    if not isinstance(found, dict) or not all(isinstance(word, str) for word in found.values()):
        raise ValueError(f"'{name}' is not a dictionary of strings")
    return found


def _count(values: dict[str, Any], name: str) -> int:
    found = values[name]
    if type(found) is not int or not 0 <= found < 2**64:
        raise ValueError(f"'{name}' is {str(found)[:40]}, expected a number that is not negative")
    return found


def _site(name: str, found: Any, chains: int) -> Site:
    dtype, shape = found
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in _KINDS:
        raise ValueError(f"the site '{name}' has the type {str(dtype)[:40]}, expected numbers")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 32:
        raise ValueError(f"the site '{name}' has the shape {str(shape)[:40]}")
    if chains * math.prod(max(size, 1) for size in shape) > _MOST:
        raise ValueError(
            f"the site '{name}' has the shape {tuple(shape)} in each of {chains} chains, which is too large"
        )
    return Site(dtype, tuple(shape))
