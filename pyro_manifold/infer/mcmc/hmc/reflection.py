"""Reflections of square matrices, which move chains between the two components of O(n)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import State
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    PositionState,
    Potential,
    Problem,
    Statistics,
    choose,
    metropolis,
    uniform_like,
)

R = TypeVar("R", State, PositionState)


def draw_reflections(position: Tensor, probability: float, random: torch.Generator | None = None) -> Tensor:
    r"""Draw vectors v of reflections $I - 2vv^\top$, one for each matrix; v = 0 leaves a matrix unchanged.

    With the given probability, one random matrix of each chain is reflected. With equal probability, v is a coordinate
    axis (a change of sign of a column, a symmetry of many models) or uniform on the sphere (which can reach every
    matrix of the other component). It does not depend on X.

    Args:
        position: X, ``(chains, ..., n, n)``.
        probability: probability of a reflection.
        random: random number generator.

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
    r"""Compute $M(I - 2vv^\top)$, which is its own inverse."""
    return matrix - 2 * (matrix @ v) @ v.mT


class Reflection:
    """Metropolis transition that proposes a random reflection of each square site in turn.

    v does not depend on X and a reflection is its own inverse, so the proposal is symmetric. The momentum, where states
    have one, is reflected together with its matrix, which conserves the kinetic energy and keeps the momentum tangent
    at the new matrix.

    Args:
        blocks: blocks of square matrices.
        potential: potential energy and gradient of positions.
        probability: probability of proposing a reflection.
    """

    def __init__(self, blocks: Sequence[Block], potential: Potential, probability: float) -> None:
        self._blocks = blocks
        self._potential = potential
        self._probability = probability

    def __call__(self, state: R, settings: object, random: torch.Generator) -> tuple[R, Statistics]:
        moved = torch.zeros_like(state.energy, dtype=torch.bool)
        for block in self._blocks:
            state, found = self._reflect(state, block, random)
            moved = moved | found
        return state, {"reflected": moved}

    def _reflect(self, state: R, block: Block, random: torch.Generator) -> tuple[R, Tensor]:
        v = draw_reflections(state.position[block], self._probability, random)

        def with_it(blocks: Blocks) -> Blocks:
            return {**blocks, block: reflected(blocks[block], v)}

        position = with_it(state.position)
        energy, gradient = self._potential(position)
        proposal = state._replace(position=position, energy=energy, gradient=gradient)
        if isinstance(proposal, State):
            proposal = proposal._replace(momentum=with_it(proposal.momentum))
        accepted = metropolis(state.energy, energy, uniform_like(energy, random)).accepted
        proposed = v.flatten(1).any(1)
        return choose(accepted, proposal, state), accepted & proposed


def reflections(problem: Problem, probability: float) -> list[Reflection]:
    """Return the reflections of all sites on O(n), whose two components are not connected; [] if there are none.

    Args:
        problem: target with the sites.
        probability: probability of proposing a reflection; 0 causes a warning about the component that is not sampled.
    """
    square: list[Block] = [
        block
        for block, manifold in problem.manifolds.items()
        if manifold.components(*problem.position[block].shape[-manifold.event_dim :]) > 1
    ]
    if square and not probability:
        names = ", ".join(f"'{name}'" for (name,) in square)
        warnings.warn(
            f"Site {names} is square, and a continuous path never changes the sign of its determinant: with "
            "reflection_probability=0, draws follow the posterior given the sign of the initial value.",
            stacklevel=4,
        )
        return []
    return [Reflection(square, problem.potential, probability)] if square else []
