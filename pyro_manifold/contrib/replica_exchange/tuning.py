"""Adaptation of step sizes, masses and trajectory lengths of replicas, separately for each level."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_manifold.contrib.replica_exchange.ladder import interpolated
from pyro_manifold.contrib.replica_exchange.prior_draws import PriorDraws
from pyro_manifold.contrib.replica_exchange.swap import ReplicaSettings
from pyro_manifold.infer.mcmc.adaptation import ParticleTuning, constant_gain
from pyro_manifold.infer.mcmc.mechanics import State

_DELAY, _DECAY = 10, 0.75


def decreasing_gain(moves: int) -> float:
    """Gain of the adaptation of step sizes on a fixed ladder."""
    return constant_gain(moves) * (1 + moves / _DELAY) ** -_DECAY


class LadderTuning(ParticleTuning):
    """Adaptation of replicas: `ParticleTuning` with levels in the place of runs, plus swap parity and prior draws.

    Args:
        fresh: draws from the prior.
        **options: as for `ParticleTuning`.
    """

    changing = (*ParticleTuning.changing, "fresh")

    def __init__(self, state: State, levels: int, *args: Any, fresh: PriorDraws, **options: Any) -> None:
        self.fresh = fresh
        super().__init__(state, levels, *args, gain=decreasing_gain, **options)

    def settings(self, iteration: int) -> ReplicaSettings:  # type: ignore[override]  # has all of its fields
        """Return the settings of this iteration, counted from 1; level 0 is redrawn after odd pairs swap."""
        steps = super().settings(iteration)
        parity = (iteration - 1) % 2
        step_size: Any = steps.step_size
        fresh = self.fresh.take(self.step_sizes.chains) if parity == 1 else None
        return ReplicaSettings(step_size, steps.num_steps, steps.metrics, steps.persistence, parity, fresh)

    def new_ladder(self, old: Tensor, new: Tensor) -> None:
        """Set masses from the completed round, and interpolate masses and step sizes to the new levels."""
        self.end_level()
        self.step_sizes.restart(interpolated(old, self.step_sizes.logarithm, new))
        self.masses.use(
            {block: interpolated(old, mass.log(), new).exp() for block, mass in self.masses.inverse_masses.items()}
        )
