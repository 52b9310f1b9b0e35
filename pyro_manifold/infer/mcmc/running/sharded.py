"""Seed and draws of chains that are run in shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.running.sampling import RECENT
from pyro_manifold.infer.mcmc.running.shards import Job, Outcome
from pyro_manifold.infer.mcmc.running.store import Store
from pyro_manifold.store import (
    FORMAT,
    SITES,
    STATISTICS,
    StoredRun,
    StoredTensors,
    read_json,
    shard_folder,
    write_durably,
)

_NAME = "shards.json"


def seed_of_all(store: Store | None, count: int, resume: bool) -> int:
    """Return the seed of all shards: that of the stored run if there is one, else a new one from torch's generator.

    Raises:
        ValueError: if the store has another number of shards.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    if store is None:
        return seed
    path = store.folder / _NAME
    if resume and path.exists():
        found = read_json(path)
        if found.get("shards") != count or type(found.get("seed")) is not int:
            raise ValueError(
                f"store='{store.folder}' has {str(found.get('shards'))[:20]} shards, expected {count}: pass the "
                "same number, or choose another folder."
            )
        return int(found["seed"])
    store.make_folder()
    write_durably({path: json.dumps({"format": FORMAT, "shards": count, "seed": seed}).encode()})
    return seed


class ShardedDraws:
    """Draws of all shards, with their chains concatenated.

    Args:
        job: work of the shards.
        outcomes: results of the shards.
        thinning: number of iterations per draw.

    Attributes:
        requested_iterations: number of iterations after warm-up.
    """

    def __init__(self, job: Job, outcomes: list[Outcome], thinning: int) -> None:
        self.requested_iterations = job.num_samples
        self._outcomes, self._requested = outcomes, job.num_samples // thinning
        folder = None if job.store is None else job.store.folder
        self._runs = [] if folder is None else [StoredRun(shard_folder(folder, k)) for k in range(len(outcomes))]

    @property
    def draws(self) -> int:
        """Number of draws that every shard has; a shard that was interrupted has fewer than requested."""
        if self._runs:
            return min(self._requested, *(run.draws for run in self._runs))
        lengths = [x.shape[1] for outcome in self._outcomes for x in (outcome.samples | outcome.statistics).values()]
        return min(lengths, default=self._requested)

    def samples(self, last: int | None = None) -> Mapping[str, Tensor]:
        """Return draws, ``{site: (chains, draws, ...)}``; only the last ones with ``last``."""
        if self._runs:
            return StoredTensors(self._runs, SITES, self.draws, last)
        return self._joined([outcome.samples for outcome in self._outcomes])

    def statistics(self, last: int | None = None) -> Mapping[str, Tensor]:
        """Return statistics, ``{name: (chains, draws)}``; only the last ones with ``last``."""
        if self._runs:
            return StoredTensors(self._runs, STATISTICS, self.draws, last)
        return self._joined([outcome.statistics for outcome in self._outcomes])

    def recent(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return draws and statistics, only the most recent ones if they are stored in files."""
        return self.samples(RECENT), self.statistics(RECENT)

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return no entries, as `MCMC.diagnostics` of shards has those of all runs alone."""
        return {}

    def summary_lines(self) -> list[str]:
        """Return no lines below the table of `MCMC.summary`."""
        return []

    def _joined(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name][:, : self.draws] for part in parts]) for name in parts[0]}
