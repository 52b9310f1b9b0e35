"""Adaptation of step sizes, masses and trajectory lengths of replicas, separately for each level."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.contrib.replica_exchange.ladder import interpolated
from pyro_manifold.contrib.replica_exchange.prior_draws import PriorDraws
from pyro_manifold.contrib.replica_exchange.swap import ReplicaSettings
from pyro_manifold.infer.mcmc.adaptation import ParticleTuning
from pyro_manifold.infer.mcmc.mechanics import State
from pyro_manifold.infer.mcmc.transitions import Statistics

_DELAY, _DECAY = 10, 0.75


class LadderTuning(ParticleTuning):
    """Adaptation of replicas: `ParticleTuning` with levels in the place of runs, plus swap parity and prior draws.

    Args:
        fresh: draws from the prior.
        **options: as for `ParticleTuning`.
    """

    changing = (*ParticleTuning.changing, "_learnt", "fresh")

    def __init__(self, state: State, levels: int, *args: Any, fresh: PriorDraws, **options: Any) -> None:
        self._learnt = 0  # iterations since the ladder was last set
        self.fresh = fresh
        super().__init__(state, levels, *args, **options)

    def settings(self, iteration: int) -> ReplicaSettings:  # type: ignore[override]  # has all of its fields
        """Return the settings of this iteration, counted from 1; level 0 is redrawn after odd pairs swap."""
        steps = super().settings(iteration)
        parity = (iteration - 1) % 2
        step_size: Any = steps.step_size
        fresh = self.fresh.take(self._chains) if parity == 1 else None
        return ReplicaSettings(step_size, steps.num_steps, steps.metrics, steps.persistence, parity, fresh)

    def learn(
        self, iteration: int, before: State, after: State, statistics: Statistics, random: torch.Generator
    ) -> None:
        super().learn(iteration, before, after, statistics, random)
        self._learnt += 1

    @property
    def _gain(self) -> float:
        return super()._gain * (1 + self._learnt / _DELAY) ** -_DECAY

    def new_ladder(self, old: Tensor, new: Tensor) -> None:
        """Set masses from the completed round, and interpolate masses and step sizes to the new levels."""
        self.end_level()
        self._log_step_size = interpolated(old, self._log_step_size, new)
        self._inverse_masses = {
            block: interpolated(old, mass.log(), new).exp() for block, mass in self._inverse_masses.items()
        }
        self._use_masses()
        self._learnt = 0
