"""A Hamiltonian system over blocks: potential, mechanics, and the Metropolised trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.compiled import Metrics, Step, compile_step
from pyro_manifold.infer.mcmc.leapfrog import (
    Block,
    Blocks,
    ChainState,
    Potential,
    State,
    draw_momentum,
    kinetic_energy,
    leapfrog_step,
)
from pyro_manifold.infer.mcmc.mechanics import Mechanics
from pyro_manifold.infer.mcmc.metropolis import TransitionInfo, metropolis

S = TypeVar("S", bound=ChainState)


class Dynamics(Protocol[S]):
    """What a kernel asks of the system that it runs."""

    def state_at(self, position: Blocks) -> S:
        """A state from which a run can start."""

    def transition(
        self, state: S, step_size: Tensor | float, num_steps: int, metrics: Metrics
    ) -> tuple[S, TransitionInfo]:
        """One iteration of all chains."""

    def forget_compiled(self) -> None:
        """Step without a graph from now on."""


class HamiltonianSystem:
    """Pure functions of states, bound to one potential; all chains move together.

    Args:
        potential: positions to energies ``(chains,)`` and Euclidean gradients.
        mechanics: how each block moves.
    """

    def __init__(self, potential: Potential, mechanics: Mapping[Block, Mechanics]) -> None:
        self.potential = potential
        self.mechanics = mechanics
        self._step: Step = self._eager_step

    def state_at(self, position: Blocks) -> State:
        """A state at rest."""
        energy, gradient = self.potential(position)
        return State(position, {block: torch.zeros_like(x) for block, x in position.items()}, energy, gradient)

    def refresh(self, state: State, metrics: Metrics) -> State:
        """Fresh momenta from their law."""
        return draw_momentum(state, mechanics=self.mechanics, metrics=metrics)

    def energy(self, state: State, metrics: Metrics) -> Tensor:
        """Total energy of each chain, ``(chains,)``."""
        return state.energy + kinetic_energy(state, mechanics=self.mechanics, metrics=metrics)

    def integrate(self, state: State, step_size: Tensor | float, num_steps: int, metrics: Metrics) -> State:
        """``num_steps`` leapfrog steps."""
        step_size = torch.as_tensor(step_size, dtype=state.energy.dtype, device=state.energy.device)
        for _ in range(num_steps):
            state = self._step(state, step_size, metrics)
        return state

    def transition(
        self, state: State, step_size: Tensor | float, num_steps: int, metrics: Metrics
    ) -> tuple[State, TransitionInfo]:
        """Refresh momenta, follow a trajectory, accept or reject its end."""
        start = self.refresh(state, metrics)
        end = self.integrate(start, step_size, num_steps, metrics)
        energies = self.energy(start, metrics), self.energy(end, metrics)
        restored = {block: move.restore(end.position[block]) for block, move in self.mechanics.items()}
        return metropolis(start, end._replace(position=restored), *energies)

    def compile(self, state: State, metrics: Metrics, options: dict[str, Any] | None = None, warn: bool = True) -> None:
        """Replace the step by one compiled graph; keeps the eager step, with a warning, if that fails."""
        self._step = compile_step(self._eager_step, self.refresh(state, metrics), metrics, options=options, warn=warn)

    def forget_compiled(self) -> None:
        """Step without the compiled graph from now on."""
        self._step = self._eager_step

    def _eager_step(self, state: State, step_size: Tensor, metrics: Metrics) -> State:
        return leapfrog_step(state, step_size, potential=self.potential, mechanics=self.mechanics, metrics=metrics)
