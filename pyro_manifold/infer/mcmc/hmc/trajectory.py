"""The transition of Hamiltonian Monte Carlo: refresh momenta, follow a trajectory, accept or reject its end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import Metrics, State, refresh, reversed_in_time, total_energy
from pyro_manifold.infer.mcmc.hmc.step import Step
from pyro_manifold.infer.mcmc.metropolis import metropolis
from pyro_manifold.infer.mcmc.states import Statistics, choose


class HamiltonianSettings(NamedTuple):
    """What a trajectory needs to know beside where it starts.

    Attributes:
        step_size: ε, a number or ``(chains,)``.
        num_steps: leapfrog steps.
        metrics: masses of all blocks.
        persistence: share of the momentum that is kept; 0 draws it anew.
    """

    step_size: Tensor | float
    num_steps: int
    metrics: Metrics
    persistence: float = 0.0


class Trajectory:
    """Refresh, integrate, decide; for all chains together.

    A rejected chain goes on from where it was with its momentum reversed: without that, momenta that persist would not
    keep their distribution (Horowitz 1991).

    Args:
        step: the leapfrog step.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._mechanics = step.mechanics

    def __call__(
        self, state: State, settings: HamiltonianSettings, random: torch.Generator
    ) -> tuple[State, Statistics]:
        metrics = settings.metrics
        start = refresh(
            state, mechanics=self._mechanics, metrics=metrics, persistence=settings.persistence, random=random
        )
        end = self.integrate(start, settings.step_size, settings.num_steps, metrics)
        before, after = (total_energy(each, mechanics=self._mechanics, metrics=metrics) for each in (start, end))
        decision = metropolis(before, after, random)
        restored = {block: move.restore(end.position[block]) for block, move in self._mechanics.items()}
        back = reversed_in_time(start) if settings.persistence else start  # momenta that are drawn anew need no turning
        chosen: State = choose(decision.accepted, end._replace(position=restored), back)
        return chosen, {
            **decision.statistics,
            "energy": torch.where(decision.accepted, after, before),
            "lp": -chosen.energy,
            "step_size": torch.as_tensor(settings.step_size).to(before).expand_as(before),
            "n_steps": torch.full_like(before, settings.num_steps, dtype=torch.long),
        }

    def integrate(self, state: State, step_size: Tensor | float, num_steps: int, metrics: Metrics) -> State:
        """``num_steps`` leapfrog steps."""
        step_size = torch.as_tensor(step_size, dtype=state.energy.dtype, device=state.energy.device)
        for _ in range(num_steps):
            state = self.step(state, step_size, metrics)
        return state
