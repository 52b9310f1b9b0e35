"""Consumer that finds the symmetries of a stored run from its first draws and records them in its folder."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pyro_manifold.density import Sites
from pyro_manifold.diagnostics import found_symmetries, has_record, record_symmetries
from pyro_manifold.infer.mcmc.running.loop import Iteration
from pyro_manifold.infer.mcmc.running.run import Run

_DRAWS = 3  # of all chains


class SymmetryRecord:
    """Record of the symmetries of a run, made once.

    Args:
        folder: folder of the stored run.
        run: the run.
        names: the sites that are stored.
    """

    def __init__(self, folder: Path, run: Run[Any, Any], names: Collection[str]) -> None:
        self._folder, self._run, self._names = folder, run, set(names)
        self._draws: list[Sites] = []
        self._done = has_record(folder)

    def __call__(self, iteration: Iteration) -> None:
        """Find the symmetries once there are a few draws."""
        if self._done or not iteration.kept:
            return
        self._draws.append({name: value.detach().clone() for name, value in iteration.values.items()})
        if len(self._draws) * self._run.chains < _DRAWS:
            return
        self._done = True
        samples = {name: torch.stack([draw[name] for draw in self._draws], 1) for name in self._draws[0]}
        with torch.random.fork_rng(devices=[]):  # a model may use random numbers of its own
            found = found_symmetries(lambda: self._run.target.as_written, samples)
        if found is not None and not {name for each in found for name in each.names} <= self._names:
            found = None
        with suppress(OSError):  # draw storage finds a folder that is gone or full
            record_symmetries(self._folder, found)
