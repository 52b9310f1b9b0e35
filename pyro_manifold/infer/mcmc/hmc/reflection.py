"""Reflections of square matrices, which move chains between the two components of O(n)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, Start, State, Trajectory
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    Noise,
    PositionState,
    Potential,
    Problem,
    Statistics,
    choose,
    metropolis,
    normal_like,
)

R = TypeVar("R", State, PositionState)


class ReflectionNoise(NamedTuple):
    """Noise of a proposed reflection.

    Attributes:
        normal: standard normal numbers for each block of square matrices, ``(chains, n)``.
        choices: uniform numbers in [0, 1), ``(chains, 4)``: for whether a reflection is proposed, whether of an axis,
            of which axis, and of which matrix.
        uniform: uniform numbers for the Metropolis decision, ``(chains,)``.
    """

    normal: Blocks
    choices: Tensor
    uniform: Tensor


def reflected(matrix: Tensor, v: Tensor) -> Tensor:
    r"""Compute $M(I - 2vv^\top)$, which is its own inverse."""
    return matrix - 2 * (matrix @ v) @ v.mT


class Reflections:
    r"""Metropolis transition that proposes a reflection $X(I - 2vv^\top)$ of one of all square matrices.

    With equal probability, v is a coordinate axis (a change of sign of a column, a symmetry of many models) or uniform
    on the sphere (which can reach every matrix of the other component). v does not depend on X and a reflection is its
    own inverse, so the proposal is symmetric. The momentum, where states have one, is reflected together with its
    matrix, which conserves the kinetic energy and keeps the momentum tangent at the new matrix.

    Args:
        matrices: number of matrices in each block of square matrices.
        potential: potential energy and gradient of positions.
        probability: probability of proposing a reflection.
    """

    def __init__(self, matrices: Mapping[Block, int], potential: Potential, probability: float) -> None:
        self._matrices, self._potential, self._probability = dict(matrices), potential, probability

    def __call__(self, state: R, settings: object, random: torch.Generator) -> tuple[R, Statistics]:
        state, moved = self.reflect(state, self.noise(state.position, random), self._potential)
        return state, {"reflected": moved}

    def noise(self, position: Blocks, random: torch.Generator | None = None) -> ReflectionNoise:
        """Draw the noise of a proposal for every chain."""
        rows = {block: position[block].flatten(1, -2)[:, 0] for block in self._matrices}
        like = next(iter(rows.values()))
        uniform = torch.rand(len(like), 5, dtype=like.dtype, device=like.device, generator=random)
        normal = {block: normal_like(row, random) for block, row in rows.items()}
        return ReflectionNoise(normal, uniform[:, :4], uniform[:, 4])

    def directions(self, noise: ReflectionNoise, position: Blocks) -> Blocks:
        """Return v for each matrix, ``(chains, ..., n, 1)``; v = 0 leaves a matrix unchanged."""
        proposed, on_axis, axis, which = noise.choices.split(1, dim=1)
        which, first, found = which * sum(self._matrices.values()), 0, {}
        for block, matrices in self._matrices.items():
            normal, n = noise.normal[block], position[block].shape[-1]
            uniform = normal / normal.square().sum(1, keepdim=True).sqrt()
            v = torch.where(on_axis < 0.5, _chosen(axis * n, n), uniform)
            chosen = _chosen(which - first, matrices).unsqueeze(-1)
            v = torch.where(proposed < self._probability, v, 0.0).unsqueeze(1) * chosen
            found[block] = v.reshape(*position[block].shape[:-1], 1)
            first += matrices
        return found

    def reflect(self, state: R, noise: ReflectionNoise, potential: Potential) -> tuple[R, Tensor]:
        """Propose the reflection of this noise; return the states, and which chains were reflected."""
        v = self.directions(noise, state.position)

        def with_it(blocks: Blocks) -> Blocks:
            return {block: reflected(x, v[block]) if block in v else x for block, x in blocks.items()}

        position = with_it(state.position)
        energy, gradient = potential(position)
        proposal = state._replace(position=position, energy=energy, gradient=gradient)
        if isinstance(proposal, State):
            proposal = proposal._replace(momentum=with_it(proposal.momentum))
        accepted = metropolis(state.energy, energy, noise.uniform).accepted
        return choose(accepted, proposal, state), accepted & (noise.choices[:, 0] < self._probability)


class ReflectedTrajectory:
    """A proposed reflection, then a trajectory, as one pure transition: both are in the same native code.

    Args:
        trajectory: the trajectory.
        reflections: the proposal before it.
    """

    def __init__(self, trajectory: Trajectory, reflections: Reflections) -> None:
        self._trajectory, self._reflections = trajectory, reflections
        self.prepared, self.step = trajectory.prepared, trajectory.step

    def noise(self, state: State, random: torch.Generator) -> Noise:
        """Draw the noise of the reflection, of the momenta and of the Metropolis decisions."""
        reflection, rest = self._reflections.noise(state.position, random), self._trajectory.noise(state, random)
        normal = (reflection.normal, reflection.choices), rest.normal
        return Noise(normal, (reflection.uniform, rest.uniform))

    def begin(
        self, state: State, settings: HamiltonianSettings, noise: Noise, potential: Potential
    ) -> tuple[State, tuple[Start, Tensor]]:
        """Propose a reflection, refresh momenta and compute the total energy."""
        reflection, rest = self._each(noise)
        state, moved = self._reflections.reflect(state, reflection, potential)
        carried, start = self._trajectory.begin(state, settings, rest, potential)
        return carried, (start, moved)

    def finish(
        self, end: State, kept: tuple[Start, Tensor], settings: HamiltonianSettings, noise: Noise
    ) -> tuple[State, Statistics]:
        """Return the end of each accepted trajectory, else its start, and the statistics of the iteration."""
        start, moved = kept
        state, statistics = self._trajectory.finish(end, start, settings, self._each(noise)[1])
        return state, {**statistics, "reflected": moved}

    @staticmethod
    def _each(noise: Noise) -> tuple[ReflectionNoise, Noise]:
        ((of_reflection, choices), normal), (decision, uniform) = noise.normal, noise.uniform
        return ReflectionNoise(of_reflection, choices, decision), Noise(normal, uniform)


def reflections(problem: Problem, probability: float) -> Reflections | None:
    """Return the reflections of all sites on O(n), whose two components are not connected; None if there are none.

    Args:
        problem: target with the sites.
        probability: probability of proposing a reflection; 0 causes a warning about the component that is not sampled.
    """
    square: dict[Block, int] = {
        block: problem.position[block][0].numel() // problem.position[block].shape[-1] ** 2
        for block, manifold in problem.manifolds.items()
        if manifold.components(*problem.position[block].shape[-manifold.event_dim :]) > 1
    }
    if square and not probability:
        names = ", ".join(f"'{name}'" for (name,) in square)
        warnings.warn(
            f"Site {names} is square, and a continuous path never changes the sign of its determinant: with "
            "reflection_probability=0, draws follow the posterior given the sign of the initial value.",
            stacklevel=4,
        )
        return None
    return Reflections(square, problem.potential, probability) if square else None


def _chosen(place: Tensor, count: int) -> Tensor:
    """Return 1 in the column of the integer part of each place, else 0, ``(chains, count)``, from ``(chains, 1)``."""
    columns = torch.arange(count, dtype=place.dtype, device=place.device)
    return ((columns <= place) & (place < columns + 1)).to(place.dtype)
