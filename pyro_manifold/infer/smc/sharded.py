"""Runs in other processes, by the executors that chains have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.shards import Shards, run_shards
from pyro_manifold.infer.smc.results import Result
from pyro_manifold.target.batched import Sites


@dataclass(frozen=True)
class Job:
    """The runs of all shards.

    Attributes:
        kernel: that moves particles.
        runs: of all shards together.
        options: of `SMC`, the same for all shards.
        args: of the model.
        kwargs: of the model.
        seed: from which shards have theirs.
        parameters: Pyro's parameter store, which guides that are functions have their values from.
    """

    kernel: Any
    runs: int
    options: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    seed: int
    parameters: Any
    store: None = None

    def done_by(self, number: int, count: int) -> tuple[Sites, dict[str, Tensor]]:
        """Particles of one shard, and what else there is to tell."""
        from pyro_manifold.infer.smc.smc import SMC  # which has shards

        store = pyro.get_param_store()
        before = store.get_state()
        _replace(store, self.parameters)
        try:
            smc = SMC(self.kernel, num_runs=self.runs // count, disable_progbar=True, **self.options)
            smc.run(*self.args, **self.kwargs)
        finally:
            _replace(store, before)
        return smc.result.samples, smc.result.told()


def _replace(store: Any, state: Any) -> None:
    """Pyro adds what it is given to what there is."""
    store.clear()
    store.set_state(state)


def run_in_shards(
    shards: Shards, kernel: Any, runs: int, options: dict[str, Any], args: Any, kwargs: Any, disable_progbar: bool
) -> Result:
    """The runs of all shards; arguments as in `Job`."""
    seed = int(torch.randint(2**63 - 1, ()))
    job = Job(kernel, runs, options, args, kwargs, seed, pyro.get_param_store().get_state())
    outcomes = run_shards(shards, job, 1, disable_progbar)
    return Result.of_shards([each.samples for each in outcomes], [each.statistics for each in outcomes])
