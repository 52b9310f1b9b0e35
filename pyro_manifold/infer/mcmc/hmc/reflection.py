"""Reflections: how chains pass between the two components of O(n)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import State
from pyro_manifold.infer.mcmc.metropolis import metropolis
from pyro_manifold.infer.mcmc.states import Block, Potential, Statistics, choose


def draw_reflections(position: Tensor, probability: float, random: torch.Generator | None = None) -> Tensor:
    r"""Vectors v of the reflections :math:`I - 2vv^\top`, one for each matrix; zero for those that stay as they are.

    One matrix of each chain is reflected, with this probability. v is a coordinate axis (the sign of a column changes:
    a symmetry of many models) or uniform on the sphere (which reaches every matrix of the other component), half of the
    time each. It does not depend on X.

    Args:
        position: X, ``(chains, ..., n, n)``.
        probability: of a reflection.
        random: where the random numbers come from.

    Returns:
        v, ``(chains, ..., n, 1)``.
    """
    chains, n = len(position), position.shape[-1]
    options: dict[str, Any] = {"generator": random, "device": position.device}
    matrices = position.reshape(chains, -1, n, n).shape[1]
    axis = torch.nn.functional.one_hot(torch.randint(n, (chains,), **options), n).to(position)
    uniform = torch.nn.functional.normalize(torch.randn(chains, n, dtype=position.dtype, **options), dim=-1)
    coin, proposed = torch.rand(2, chains, 1, **options)
    v = torch.where(coin < 0.5, axis, uniform) * (proposed < probability)
    which = torch.randint(matrices, (chains,), **options)
    chosen = torch.nn.functional.one_hot(which, matrices).to(position)
    return (chosen.unsqueeze(-1) * v.unsqueeze(1)).reshape(*position.shape[:-1], 1)


def reflected(matrix: Tensor, v: Tensor) -> Tensor:
    r""":math:`M(I - 2vv^\top)`; its own inverse."""
    return matrix - 2 * (matrix @ v) @ v.mT


class Reflection:
    """Metropolis step on each square site in turn, whose proposal is a random reflection.

    v does not depend on X and a reflection is its own inverse, so the proposal is symmetric. The momentum is reflected
    with its matrix: the kinetic energy stays, and the momentum remains one at the new matrix.

    Args:
        blocks: sites of square matrices.
        potential: potential energy and gradient of positions.
        probability: of proposing a reflection.
    """

    def __init__(self, blocks: Sequence[Block], potential: Potential, probability: float) -> None:
        self._blocks = blocks
        self._potential = potential
        self._probability = probability

    def __call__(self, state: State, settings: object, random: torch.Generator) -> tuple[State, Statistics]:
        moved = torch.zeros_like(state.energy, dtype=torch.bool)
        for block in self._blocks:
            state, found = self._reflect(state, block, random)
            moved = moved | found
        return state, {"reflected": moved}

    def _reflect(self, state: State, block: Block, random: torch.Generator) -> tuple[State, Tensor]:
        v = draw_reflections(state.position[block], self._probability, random)
        position = {**state.position, block: reflected(state.position[block], v)}
        momentum = {**state.momentum, block: reflected(state.momentum[block], v)}
        energy, gradient = self._potential(position)
        accepted = metropolis(state.energy, energy, random).accepted
        proposed = v.flatten(1).any(1)
        return choose(accepted, State(position, momentum, energy, gradient), state), accepted & proposed
