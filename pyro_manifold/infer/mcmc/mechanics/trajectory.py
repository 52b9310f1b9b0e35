"""Transition of Hamiltonian Monte Carlo: refresh momenta, integrate a trajectory, accept or reject its end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics.leapfrog import State, leapfrog_step, refresh, reversed_in_time, total_energy
from pyro_manifold.infer.mcmc.mechanics.product import Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.transitions import (
    Blocks,
    Noise,
    Potential,
    Statistics,
    choose,
    metropolis,
    uniform_like,
    with_step_sizes,
)


class HamiltonianSettings(NamedTuple):
    """Settings of a Hamiltonian trajectory.

    Attributes:
        step_size: ε, a number or ``(chains,)``.
        num_steps: number of leapfrog steps.
        metrics: masses of all blocks.
        persistence: fraction of the momentum that is kept; 0 is a full refreshment.
    """

    step_size: Tensor | float
    num_steps: int
    metrics: Metrics
    persistence: float = 0.0


class Start(NamedTuple):
    """Start of a trajectory, used in the Metropolis decision.

    Attributes:
        state: initial state, with fresh momenta.
        total: total energy of that state.
    """

    state: State
    total: Tensor


def at_rest(position: Blocks, potential: Potential) -> State:
    """Return a state with zero momentum."""
    energy, gradient = potential(position)
    return State(position, {block: torch.zeros_like(x) for block, x in position.items()}, energy, gradient)


class Trajectory:
    """Trajectory as pure functions: refresh momenta, integrate, accept or reject.

    The momentum of a rejected chain is reversed; otherwise the distribution of persistent momenta would not be
    invariant (Horowitz 1991).

    Args:
        mechanics: mechanics of the blocks.
    """

    def __init__(self, mechanics: ProductMechanics) -> None:
        self.mechanics = mechanics

    def prepared(self, settings: HamiltonianSettings, state: State) -> HamiltonianSettings:
        """Return the settings with the step size as a tensor ``(chains,)``."""
        return with_step_sizes(settings, state.energy)

    def noise(self, state: State, random: torch.Generator) -> Noise:
        """Draw the noise of the momenta and of the Metropolis decision."""
        return Noise(self.mechanics.noise(state.position, random), uniform_like(state.energy, random))

    def begin(
        self, state: State, settings: HamiltonianSettings, noise: Noise, potential: Potential
    ) -> tuple[State, Start]:
        """Refresh momenta and compute the total energy."""
        metrics, persistence = settings.metrics, settings.persistence
        start = refresh(state, mechanics=self.mechanics, metrics=metrics, persistence=persistence, noise=noise.normal)
        return start, Start(start, total_energy(start, mechanics=self.mechanics, metrics=metrics))

    def step(self, state: State, settings: HamiltonianSettings, noise: Noise, potential: Potential) -> State:
        """Take one leapfrog step."""
        return leapfrog_step(
            state, settings.step_size, potential=potential, mechanics=self.mechanics, metrics=settings.metrics
        )

    def finish(self, end: State, start: Start, settings: HamiltonianSettings, noise: Noise) -> tuple[State, Statistics]:
        """Return the end of each accepted trajectory, else its start, and the statistics of the iteration."""
        after = total_energy(end, mechanics=self.mechanics, metrics=settings.metrics)
        decision = metropolis(start.total, after, noise.uniform)
        restored = end._replace(position=self.mechanics.restore(end.position))
        # Momenta that are fully refreshed need no reversal.
        back = reversed_in_time(start.state) if settings.persistence else start.state
        chosen: State = choose(decision.accepted, restored, back)
        energy = torch.where(decision.accepted, after, start.total)
        return chosen, {**decision.statistics, "energy": energy, "lp": -chosen.energy}
