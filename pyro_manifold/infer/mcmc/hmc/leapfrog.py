"""The leapfrog step over all blocks of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics, Metric
from pyro_manifold.infer.mcmc.states import Block, Blocks, Potential

BlockMechanics = Mapping[Block, Mechanics]
Metrics = Mapping[Block, Metric]


class State(NamedTuple):
    """A position and a momentum of every chain, with what the next step needs."""

    position: Blocks
    momentum: Blocks
    energy: Tensor
    gradient: Blocks


def at_rest(position: Blocks, potential: Potential) -> State:
    """A state without momentum."""
    energy, gradient = potential(position)
    return State(position, {block: torch.zeros_like(x) for block, x in position.items()}, energy, gradient)


def leapfrog_step(
    state: State, step_size: Tensor | float, *, potential: Potential, mechanics: BlockMechanics, metrics: Metrics
) -> State:
    r"""Half a kick, a drift, half a kick; every sub-step acts on each block by itself.

    Second order, symplectic and symmetric as a whole if each block's kick and drift are.

    Args:
        state: where to start; ``state.energy`` and ``state.gradient`` belong to ``state.position``.
        step_size: ε, a number or ``(chains,)``, in the time unit in which every block's mass is measured; negative
            steps go back.
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


def total_energy(state: State, *, mechanics: BlockMechanics, metrics: Metrics) -> Tensor:
    """Potential and kinetic energy of each chain, ``(chains,)``."""
    kinetic = [
        move.kinetic_energy(state.position[block], state.momentum[block], metrics[block])
        for block, move in mechanics.items()
    ]
    return state.energy + torch.stack(kinetic).sum(0)


def refresh(
    state: State,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    persistence: float = 0.0,
    random: torch.Generator | None = None,
) -> State:
    """The same positions with momenta drawn anew; ``persistence`` is the share kept, see `Mechanics.refresh`."""
    momentum = {
        block: move.refresh(state.position[block], state.momentum[block], metrics[block], persistence, random)
        for block, move in mechanics.items()
    }
    return state._replace(momentum=momentum)


def reversed_in_time(state: State) -> State:
    """The same positions with momenta of the other sign."""
    return state._replace(momentum={block: -r for block, r in state.momentum.items()})
