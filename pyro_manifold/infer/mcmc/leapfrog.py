"""The leapfrog step over all blocks of a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metric

Block = tuple[str, ...]
"""Names of the sites that move as one tensor: one manifold site, or a group of unconstrained ones."""

Blocks = dict[Block, Tensor]
"""A tensor for each block; dimension 0 is the chain."""

Potential = Callable[[Blocks], tuple[Tensor, Blocks]]
"""Maps positions to the potential energy ``(chains,)`` and its Euclidean gradient."""


class ChainState(Protocol):
    """Where all chains are: what adaptation and diagnostics need to know of any state."""

    @property
    def position(self) -> Blocks: ...

    @property
    def energy(self) -> Tensor: ...

    @property
    def gradient(self) -> Blocks: ...


class State(NamedTuple):
    """A point of phase space for every chain, with what the next step needs."""

    position: Blocks
    momentum: Blocks
    energy: Tensor
    gradient: Blocks


def leapfrog_step(
    state: State,
    step_size: Tensor | float,
    *,
    potential: Potential,
    mechanics: Mapping[Block, Mechanics],
    metrics: Mapping[Block, Metric],
) -> State:
    r"""Half a kick, a drift, half a kick; every sub-step acts on each block by itself.

    Second order, symplectic and symmetric as a whole if each block's kick and drift are.

    Args:
        state: where to start; ``state.energy`` and ``state.gradient`` belong to ``state.position``.
        step_size: ε, in the time unit in which every block's mass is measured; negative steps go back.
        potential: potential energy and Euclidean gradient of positions.
        mechanics: how each block moves.
        metrics: mass of each block.

    Returns:
        The state a time ε later.
    """
    half = step_size / 2
    position: Blocks = {}
    momentum: Blocks = {}
    for block, move in mechanics.items():
        kicked = move.kick(state.position[block], state.momentum[block], state.gradient[block], half)
        position[block], momentum[block] = move.drift(state.position[block], kicked, metrics[block], step_size)
    energy, gradient = potential(position)
    for block, move in mechanics.items():
        momentum[block] = move.kick(position[block], momentum[block], gradient[block], half)
    return State(position, momentum, energy, gradient)


def kinetic_energy(state: State, *, mechanics: Mapping[Block, Mechanics], metrics: Mapping[Block, Metric]) -> Tensor:
    """Total kinetic energy of each chain, ``(chains,)``."""
    energies = [
        move.kinetic_energy(state.position[block], state.momentum[block], metrics[block])
        for block, move in mechanics.items()
    ]
    return torch.stack(energies).sum(0)


def draw_momentum(state: State, *, mechanics: Mapping[Block, Mechanics], metrics: Mapping[Block, Metric]) -> State:
    """The same positions with fresh momenta from the law that belongs to the kinetic energy."""
    momentum = {block: move.draw_momentum(state.position[block], metrics[block]) for block, move in mechanics.items()}
    return state._replace(momentum=momentum)
