"""What stays of shards: their seed, and their draws."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.on_disk import Store
from pyro_manifold.infer.mcmc.session import RECENT
from pyro_manifold.infer.mcmc.shards import Job, Outcome
from pyro_manifold.store.files import write_durably
from pyro_manifold.store.manifest import FORMAT, read_json
from pyro_manifold.store.reading import SITES, STATISTICS, StoredRun, StoredTensors, shard_folder

_NAME = "shards.json"


def seed_of_all(store: Store | None, count: int, resume: bool) -> int:
    """The seed of all shards: new by torch's generator, or that with which the stored run began.

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
            raise ValueError(f"store='{store.folder}' has {str(found.get('shards'))[:20]} shards, and not {count}.")
        return int(found["seed"])
    store.make_folder()
    write_durably({path: json.dumps({"format": FORMAT, "shards": count, "seed": seed}).encode()})
    return seed


class ShardedDraws:
    """The draws of all shards, whose chains come one after the other.

    Args:
        job: what they did.
        outcomes: how they ended.
        thinning: iterations of a draw.

    Attributes:
        asked: iterations after warm-up.
    """

    def __init__(self, job: Job, outcomes: list[Outcome], thinning: int) -> None:
        self.asked = job.num_samples
        self._outcomes, self._wanted = outcomes, job.num_samples // thinning
        folder = None if job.store is None else job.store.folder
        self._runs = [] if folder is None else [StoredRun(shard_folder(folder, k)) for k in range(len(outcomes))]

    @property
    def draws(self) -> int:
        """So many has every shard; one that was interrupted has fewer."""
        if self._runs:
            return min(self._wanted, *(run.draws for run in self._runs))
        lengths = [x.shape[1] for outcome in self._outcomes for x in (outcome.samples | outcome.statistics).values()]
        return min(lengths, default=self._wanted)

    def samples(self, last: int | None = None) -> Mapping[str, Tensor]:
        """``{site: (chains, draws, ...)}``; the last so many."""
        if self._runs:
            return StoredTensors(self._runs, SITES, self.draws, last)
        return self._joined([outcome.samples for outcome in self._outcomes])

    def statistics(self, last: int | None = None) -> Mapping[str, Tensor]:
        """``{name: (chains, draws)}``; the last so many."""
        if self._runs:
            return StoredTensors(self._runs, STATISTICS, self.draws, last)
        return self._joined([outcome.statistics for outcome in self._outcomes])

    def recent(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Both; where they are stored, of the last draws only."""
        return self.samples(RECENT), self.statistics(RECENT)

    def _joined(self, parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name][:, : self.draws] for part in parts]) for name in parts[0]}
