"""Reflections: how chains pass between the two components of O(n)."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.leapfrog import Block, Potential, State
from pyro_manifold.infer.mcmc.metropolis import metropolis


def reflected(position: Tensor, probability: float) -> Tensor:
    r"""One random matrix of each chain becomes :math:`X(I - 2vv^\top)`, with this probability.

    v is a coordinate axis (the sign of a column changes: a symmetry of many models) or uniform on the sphere (which
    reaches every matrix of the other component), half of the time each. Neither depends on X and a reflection is its
    own inverse, so the proposal is symmetric.

    Args:
        position: X, ``(chains, ..., n, n)``.
        probability: of proposing a reflection; other chains stay where they are.

    Returns:
        The proposals, same shape.
    """
    chains, n = len(position), position.shape[-1]
    matrices = position.reshape(chains, -1, n, n)
    axis = torch.nn.functional.one_hot(torch.randint(n, (chains,), device=position.device), n).to(position)
    uniform = torch.nn.functional.normalize(
        torch.randn(chains, n, dtype=position.dtype, device=position.device), dim=-1
    )
    coin, proposed = torch.rand(2, chains, 1, device=position.device)
    v = torch.where(coin < 0.5, axis, uniform) * (proposed < probability)
    which = torch.randint(matrices.shape[1], (chains,), device=position.device)
    chosen = torch.nn.functional.one_hot(which, matrices.shape[1]).to(position)
    v = chosen[:, :, None, None] * v[:, None, :, None]
    return (matrices - 2 * (matrices @ v) @ v.mT).reshape(position.shape)


def reflect(state: State, block: Block, potential: Potential, probability: float) -> tuple[State, Tensor]:
    """Metropolis step whose proposal is `reflected`; momenta are to be drawn anew afterwards.

    Args:
        state: present states.
        block: a site of square matrices.
        potential: potential energy and gradient of positions.
        probability: of proposing a reflection.

    Returns:
        The next states, and for each chain whether its determinant changed sign.
    """
    proposal = reflected(state.position[block], probability)
    position = {**state.position, block: proposal}
    energy, gradient = potential(position)
    proposed = State(position, state.momentum, energy, gradient)
    chosen, _ = metropolis(state, proposed, state.energy, energy)
    moved = (chosen.position[block] != state.position[block]).flatten(1).any(1)
    return chosen, moved
