"""Draw storage of a run: in memory, or in files (`on_disk`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc.running.loop import Buffers, Iteration, Iterations, Recorder
from pyro_manifold.infer.mcmc.transitions import Statistics


class DrawStorage(Protocol):
    """Protocol of draw storage for draws and their statistics; it is the first consumer of each iteration.

    Attributes:
        made: number of draws of each chain that are stored with their statistics.
    """

    @property
    def num_draws(self) -> int: ...

    def __call__(self, iteration: Iteration) -> None:
        """Store an iteration."""

    def sampling(self) -> AbstractContextManager[object]:
        """Return the context manager in which iterations are run."""

    def finish(self, whole: bool) -> None:
        """Complete the storage after the last iteration; ``whole`` is False if an iteration was interrupted."""

    def settle(self) -> None:
        """Make all draws so far readable."""

    def samples(self, draws: int, last: int | None = None) -> Mapping[str, Tensor]:
        """Return constrained draws ``(chains, draws, ...)``: the first ``draws``, or the last ``last`` of these."""

    def statistics(
        self, draws: int, last: int | None = None, names: Collection[str] | None = None
    ) -> Mapping[str, Tensor]:
        """Return statistics ``(chains, draws)`` of the same draws, of at least the given names; all names if None."""


class InMemory:
    """Draw storage in memory, on the device of the model.

    Args:
        draws: expected number of draws.
        names: sites of which draws are returned.
        target: target of the draws, which are stored as positions.
        transforms: transforms from values to unconstrained space, in place of those of the target.
    """

    def __init__(
        self,
        draws: int,
        names: list[str],
        target: Target,
        transforms: Mapping[str, torch.distributions.Transform] | None = None,
    ) -> None:
        self._names, self._target, self._transforms = names, target, transforms
        self._buffers, self._recorder = self._new_buffers(draws), Recorder()
        self._before: tuple[Sites, Statistics] | None = None

    @property
    def num_draws(self) -> int:
        # An interrupt can occur between storing the draw and its statistics.
        return self._made_before + min(self._buffers.draws, self._recorder.record.draws)

    @property
    def _made_before(self) -> int:
        return 0 if self._before is None else next((x.shape[1] for part in self._before for x in part.values()), 0)

    def __call__(self, iteration: Iteration) -> None:
        self._buffers(iteration)
        self._recorder(iteration)

    def several(self, iterations: Iterations) -> None:
        """Store several iterations."""
        self._buffers.several(iterations)
        self._recorder.several(iterations)

    def sampling(self) -> AbstractContextManager[object]:
        return nullcontext()

    def finish(self, whole: bool) -> None:
        """Do nothing, as all draws are in memory."""

    def settle(self) -> None:
        """Do nothing, as all draws are in memory."""

    def make_room(self, draws: int) -> None:
        """Make room for further draws."""
        made = self.num_draws
        self._before = self._all_sites(made), self._all_statistics(made)
        self._buffers = self._new_buffers(draws)
        self._recorder.record.forget()

    def samples(self, draws: int, last: int | None = None) -> Sites:
        return self._all_sites(draws)

    def statistics(self, draws: int, last: int | None = None, names: Collection[str] | None = None) -> Statistics:
        return self._all_statistics(draws, names)

    def _new_buffers(self, draws: int) -> Buffers:
        return Buffers(draws, self._names, self._target, each=bool(self._target.dependent))

    def _all_sites(self, draws: int) -> Sites:
        return self._joined(0, self._values(draws - self._made_before))

    def _values(self, draws: int) -> Sites:
        transforms = self._transforms
        if transforms is None:
            return self._buffers.values(draws)
        sites = self._buffers.sites(draws)
        names = self._names if sites else []
        return {name: transforms[name].inv(sites[name]) if name in transforms else sites[name] for name in names}

    def _all_statistics(self, draws: int, names: Collection[str] | None = None) -> Statistics:
        found = self._recorder.record.statistics(names)
        return self._joined(1, {name: x[:, : draws - self._made_before] for name, x in found.items()})

    def _joined(self, part: int, new: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._before is None or not new:
            return new if self._before is None else self._before[part]
        return {
            name: torch.cat([self._before[part][name], x], 1) if self._made_before else x for name, x in new.items()
        }
