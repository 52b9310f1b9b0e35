"""Runs in other processes, by the same executors as for chains of `MCMC`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program, Sites
from pyro_manifold.infer.mcmc.running import Shards, run_shards
from pyro_manifold.infer.smc.results import Result


@dataclass(frozen=True)
class Job:
    """Work of all shards: runs of sequential Monte Carlo.

    Attributes:
        sampling: creates the sampler of one shard: `SMC`.
        kernel: kernel that moves particles.
        runs: number of runs of all shards together.
        options: options of `SMC`, the same for all shards.
        program: the model with its arguments.
        seed: seed from which the seeds of shards are derived.
        parameters: state of Pyro's parameter store, used by guides that are functions.
    """

    sampling: Callable[..., Any]
    kernel: Any
    runs: int
    options: dict[str, Any]
    program: Program
    seed: int
    parameters: Any
    store: None = None

    def done_by(self, number: int, count: int) -> tuple[Sites, dict[str, Tensor]]:
        """Run one shard; return its particles and the other results."""
        store = pyro.get_param_store()
        before = store.get_state()
        _replace(store, self.parameters)
        try:
            smc = self.sampling(self.kernel, num_runs=self.runs // count, disable_progbar=True, **self.options)
            result = smc.run_program(self.program)
        finally:
            _replace(store, before)
        return result.samples, result.tensors()


def _replace(store: Any, state: Any) -> None:
    """Replace the content of Pyro's parameter store, to which `set_state` would only add."""
    store.clear()
    store.set_state(state)


def run_in_shards(
    shards: Shards,
    sampling: Callable[..., Any],
    kernel: Any,
    runs: int,
    options: dict[str, Any],
    program: Program,
    disable_progbar: bool,
) -> Result:
    """Run all shards and join their results; arguments as in `Job`."""
    seed = int(torch.randint(2**63 - 1, ()))
    job = Job(sampling, kernel, runs, options, program, seed, pyro.get_param_store().get_state())
    outcomes = run_shards(shards, job, 1, disable_progbar)
    return Result.of_shards([each.samples for each in outcomes], [each.statistics for each in outcomes])
