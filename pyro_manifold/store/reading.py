"""Lazy reading of draws and statistics of a stored run, which may still be in progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.store.archive import Archive, Array, DamagedError, numbered_path
from pyro_manifold.store.manifest import Manifest, holds_a_run
from pyro_manifold.store.nested import tensor_of

SITES, STATISTICS = "posterior", "sample_stats"
CHUNK = "draws"
MOST_DRAWS = 2**24
"""Largest number of draws in a file; a bound is needed, since the size of arrays without elements does not imply it."""

_SHARD = "shard"


class Chunk(NamedTuple):
    """Draws in one file.

    Attributes:
        archive: the file.
        first: index of its first draw.
        draws: number of draws.
    """

    archive: Archive
    first: int
    draws: int


class StoredRun:
    """The stored draws of a folder.

    Args:
        folder: the folder.

    Attributes:
        manifest: the manifest of the run.
        chunks: the files with draws, in order; `refresh` adds new ones.

    Raises:
        ValueError: if there is no stored run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self.chunks: list[Chunk] = []
        self.refresh()

    def refresh(self) -> None:
        """Add files that were written since the last call."""
        while True:
            number = len(self.chunks)
            path = numbered_path(self.folder, CHUNK, number)
            if not path.exists():
                return
            self.chunks.append(self.opened(path, number, self.draws))

    def opened(self, path: Path, number: int, first: int) -> Chunk:
        """Open and check a file of draws.

        Raises:
            DamagedError: if its content is not as expected.
        """
        archive = Archive(path)
        draws = archive.about.get("draws")
        if archive.about.get("identity") != self.manifest.identity:
            raise DamagedError(f"{path} belongs to another run than {self.folder}: remove it.")
        expected = {"number": number, "first": first}
        if {name: archive.about.get(name) for name in expected} != expected or not _is_count(draws):
            raise DamagedError(f"{path} does not continue where the previous draws end: it is damaged.")
        for name, site in self.manifest.sites.items():
            archive.check(f"{SITES}/{name}", site.dtype, (self.manifest.chains, draws, *site.shape))
        for name, entry in archive.entries.items():
            group, _, statistic = name.partition("/")
            if group == STATISTICS:
                archive.check(name, str(entry.dtype), (self.manifest.chains, draws))
            elif group != SITES or statistic not in self.manifest.sites:
                raise DamagedError(f"{path} has '{name[:60]}', which is not a site of the run: it is damaged.")
        return Chunk(archive, first, draws)

    @property
    def draws(self) -> int:
        """Number of stored draws of each chain."""
        return self.chunks[-1].first + self.chunks[-1].draws if self.chunks else 0

    def names(self, group: str) -> list[str]:
        """Return the names of the sites or of the statistics."""
        if group == SITES:
            return list(self.manifest.sites)
        entries = self.chunks[0].archive.entries if self.chunks else {}
        return [name.removeprefix(f"{group}/") for name in entries if name.startswith(f"{group}/")]

    def kind(self, group: str, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the data type, and the shape of one draw of one chain."""
        if group == SITES:
            site = self.manifest.sites[name]
            return np.dtype(site.dtype), site.shape
        return self.chunks[0].archive.entries[f"{group}/{name}"].dtype, ()

    def read(self, group: str, name: str, start: int, stop: int, chains: slice = slice(None)) -> Array:
        """Return draws ``(chains, stop - start, ...)``, memory-mapped if they are all in one file."""
        parts = [
            chunk.archive[f"{group}/{name}"][chains, max(start - chunk.first, 0) : stop - chunk.first]
            for chunk in self.chunks
            if chunk.first < stop and start < chunk.first + chunk.draws
        ]
        if not parts:
            dtype, shape = self.kind(group, name)
            return np.empty((len(range(self.manifest.chains)[chains]), 0, *shape), dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _is_count(draws: Any) -> TypeGuard[int]:
    return type(draws) is int and 1 <= draws <= MOST_DRAWS


class StoredTensors(Mapping[str, Tensor]):
    """Sites or statistics by name, ``(chains, draws, ...)``, read from disk at each access.

    Args:
        runs: one run, or the shards of a run, whose chains are concatenated.
        group: sites or statistics.
        draws: only the first so many draws; None for all that every shard has.
        last: only the last so many of these.
        device: where tensors are put.
    """

    def __init__(
        self,
        runs: Sequence[StoredRun],
        group: str,
        draws: int | None = None,
        last: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._runs, self._group, self._device = runs, group, device
        there = min(run.draws for run in runs)
        self._stop = there if draws is None else min(draws, there)
        self._start = 0 if last is None else max(0, self._stop - last)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._runs[0].names(self._group):
            raise KeyError(name)
        parts = [run.read(self._group, name, self._start, self._stop) for run in self._runs]
        return tensor_of(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs[0].names(self._group))

    def __len__(self) -> int:
        return len(self._runs[0].names(self._group))


def shard_folder(folder: Path, number: int) -> Path:
    """Return the folder of a shard of a run."""
    return folder / f"{_SHARD}-{number:04d}"


def stored_runs(folder: Path) -> list[StoredRun]:
    """Return the run of a folder, or those of its shards that have begun, in order.

    Raises:
        ValueError: if there is none, or the sites of a shard differ from those of the first.
    """
    if holds_a_run(folder):
        return [StoredRun(folder)]
    runs = []
    for number in range(len(list(folder.glob(f"{_SHARD}-*"))) if folder.is_dir() else 0):
        if holds_a_run(shard_folder(folder, number)):
            runs.append(StoredRun(shard_folder(folder, number)))
    if not runs:
        raise ValueError(f"There is no stored run in '{folder}'.")
    for run in runs:
        if run.manifest.sites != runs[0].manifest.sites:
            raise ValueError(f"{run.folder} has other sites than {runs[0].folder}: expected shards of one run.")
    return runs
