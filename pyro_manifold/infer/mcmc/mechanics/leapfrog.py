"""Leapfrog step on a product of spaces."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics.product import Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential


class State(NamedTuple):
    """Position and momentum of every chain, with potential energy and gradient at the position."""

    position: Blocks
    momentum: Blocks
    energy: Tensor
    gradient: Blocks


def leapfrog_step(
    state: State, step_size: Tensor | float, *, potential: Potential, mechanics: ProductMechanics, metrics: Metrics
) -> State:
    r"""Take one leapfrog step: half a kick, a drift, half a kick.

    The step is of second order, and symplectic and symmetric if kick and drift are.

    Args:
        state: initial state; ``state.energy`` and ``state.gradient`` are those at ``state.position``.
        step_size: ε, a number or ``(chains,)``, in the time unit of the masses; negative steps go backwards in time.
        potential: potential energy and Euclidean gradient of positions.
        mechanics: mechanics of the blocks.
        metrics: masses of the blocks.

    Returns:
        The state after time ε.
    """
    momentum = mechanics.kick(state.position, state.momentum, state.gradient, step_size / 2)
    position, momentum = mechanics.drift(state.position, momentum, metrics, step_size)
    energy, gradient = potential(position)
    return State(position, mechanics.kick(position, momentum, gradient, step_size / 2), energy, gradient)


def total_energy(state: State, *, mechanics: ProductMechanics, metrics: Metrics) -> Tensor:
    """Compute the sum of potential and kinetic energy of each chain, ``(chains,)``."""
    return state.energy + mechanics.kinetic_energy(state.position, state.momentum, metrics)


def refresh(
    state: State,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
    persistence: float = 0.0,
    noise: Blocks | None = None,
) -> State:
    """Refresh momenta, fully or partially, at the same positions.

    Args:
        state: positions and momenta.
        mechanics: mechanics of the blocks.
        metrics: masses of the blocks.
        persistence: fraction of momenta that is kept; see `Mechanics.refresh`.
        noise: standard normal noise in the shape of positions; drawn from torch's global generator if None.
    """
    noise = mechanics.noise(state.position) if noise is None else noise
    return state._replace(momentum=mechanics.refresh(state.position, state.momentum, metrics, persistence, noise))


def reversed_in_time(state: State) -> State:
    """Return the same positions with momenta negated."""
    return state._replace(momentum={block: -r for block, r in state.momentum.items()})
