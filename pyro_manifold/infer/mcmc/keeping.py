"""Where the draws of a run go: into memory, or (`on_disk`) to files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.loop import Buffers, Iteration, Recorder
from pyro_manifold.infer.mcmc.states import Statistics
from pyro_manifold.target.batched import Sites


class Keeper(Protocol):
    """Keeps draws and their statistics; the first to be told of each iteration.

    Attributes:
        made: draws of each chain that are kept, with their statistics.
    """

    @property
    def made(self) -> int: ...

    def __call__(self, iteration: Iteration) -> None:
        """Take in an iteration."""

    def sampling(self) -> AbstractContextManager[object]:
        """What surrounds the iterations."""

    def finish(self, whole: bool) -> None:
        """All iterations have been told; ``whole`` says whether none of them was broken off."""

    def settle(self) -> None:
        """Make all draws so far readable."""

    def samples(self, draws: int, last: int | None = None) -> Mapping[str, Tensor]:
        """Of the first ``draws`` (of these, the last so many), as the model has them, ``(chains, draws, ...)``."""

    def statistics(
        self, draws: int, last: int | None = None, names: Collection[str] | None = None
    ) -> Mapping[str, Tensor]:
        """As `samples`, ``(chains, draws)``; those of some names at least, all if None."""


class InMemory:
    """Draws in tensors, where the model's own are.

    Args:
        draws: how many there will be.
        names: the sites to keep.
        transforms: to unconstrained space, in which chains move.
    """

    def __init__(self, draws: int, names: list[str], transforms: Mapping[str, torch.distributions.Transform]) -> None:
        self._names, self._transforms = names, transforms
        self._buffers, self._recorder = Buffers(draws, names), Recorder()
        self._before: tuple[Sites, Statistics] | None = None

    @property
    def made(self) -> int:
        # An interrupt can fall between the draw and its statistics.
        return self._made_before + min(self._buffers.draws, self._recorder.record.draws)

    @property
    def _made_before(self) -> int:
        return 0 if self._before is None else next((x.shape[1] for part in self._before for x in part.values()), 0)

    def __call__(self, iteration: Iteration) -> None:
        self._buffers(iteration)
        self._recorder(iteration)

    def sampling(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, whole: bool) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to do."""

    def make_room(self, draws: int) -> None:
        """So many more are to come."""
        made = self.made
        self._before = self._all_sites(made), self._all_statistics(made)
        self._buffers = Buffers(draws, self._names)
        self._recorder.record.forget()

    def samples(self, draws: int, last: int | None = None) -> Sites:
        sites = self._all_sites(draws)
        return {name: self._transforms[name].inv(z) if name in self._transforms else z for name, z in sites.items()}

    def statistics(self, draws: int, last: int | None = None, names: Collection[str] | None = None) -> Statistics:
        return self._all_statistics(draws, names)

    def _all_sites(self, draws: int) -> Sites:
        return self._joined(0, self._buffers.filled(draws - self._made_before))

    def _all_statistics(self, draws: int, names: Collection[str] | None = None) -> Statistics:
        found = self._recorder.record.statistics(names)
        return self._joined(1, {name: x[:, : draws - self._made_before] for name, x in found.items()})

    def _joined(self, part: int, new: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._before is None or not new:
            return new if self._before is None else self._before[part]
        return {
            name: torch.cat([self._before[part][name], x], 1) if self._made_before else x for name, x in new.items()
        }
