"""Whole iterations of Hamiltonian Monte Carlo as one call of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics, State, leapfrog_step
from pyro_manifold.infer.mcmc.hmc.mechanics import Metric
from pyro_manifold.infer.mcmc.native import native_loop
from pyro_manifold.infer.mcmc.states import Block, Potential

Tensors = Sequence[Tensor]


class Inputs(NamedTuple):
    """All that an iteration depends on, but the number of its steps; each tensor ``(chains or 1, ...)``.

    Attributes:
        step_size: ε.
        uniform: the coin of each chain.
        inverse_masses: of each block.
        mass_factors: of each block.
        noise: standard normal numbers, for the momentum of each block.
        state: positions, momenta and gradients of each block, energies.
    """

    step_size: Tensor
    uniform: Tensor
    inverse_masses: Tensors
    mass_factors: Tensors
    noise: Tensors
    state: Tensors

    def flat(self) -> list[Tensor]:
        """One after the other."""
        return [self.step_size, self.uniform, *self.inverse_masses, *self.mass_factors, *self.noise, *self.state]

    @classmethod
    def of(cls, values: Tensors) -> Inputs:
        """The inverse of `flat`."""
        count = (len(values) - 3) // 6  # of blocks
        masses, factors, noise = (values[2 + k * count : 2 + (k + 1) * count] for k in range(3))
        return cls(values[0], values[1], masses, factors, noise, values[2 + 3 * count :])

    def metrics(self, blocks: Sequence[Block]) -> Metrics:
        """The masses of blocks in this order."""
        return {
            block: Metric(*pair) for block, *pair in zip(blocks, self.inverse_masses, self.mass_factors, strict=True)
        }


def flat_state(state: State, blocks: Sequence[Block]) -> list[Tensor]:
    """Positions, momenta and gradients of blocks in this order, and energies."""
    parts = (state.position, state.momentum, state.gradient)
    return [*[part[block] for part in parts for block in blocks], state.energy]


def state_of(values: Tensors, blocks: Sequence[Block]) -> State:
    """The inverse of `flat_state`."""
    count = len(blocks)
    position, momentum, gradient = (
        dict(zip(blocks, values[k * count : (k + 1) * count], strict=True)) for k in range(3)
    )
    return State(position, momentum, values[3 * count], gradient)


Begin = Callable[[Inputs], tuple[State, Tensor]]
"""To the start of a trajectory and its total energy."""

Finish = Callable[[Inputs, State, Tensor, State], list[Tensor]]
"""From the start, its total energy and the end of a trajectory to what an iteration gives."""


def native_iteration(
    begin: Begin, finish: Finish, potential: Potential, mechanics: BlockMechanics, example: Inputs, chains: int
) -> NativeLoop:
    """The iteration of all chains, compiled.

    Args:
        begin: how a trajectory begins.
        finish: how it ends.
        potential: energy and gradient of one chain, ``(1, ...)``; traced.
        mechanics: how each block moves.
        example: inputs.
        chains: how many chains.

    Raises:
        NotCoveredError, NoCompilerError: if it cannot be compiled.
    """
    blocks, inputs = list(mechanics), example.flat()
    carried = 3 * len(blocks) + 1

    def first(*values: Tensor) -> list[Tensor]:
        start, before = begin(Inputs.of(values))
        return [*flat_state(start, blocks), before, *flat_state(start, blocks)]

    def step(*values: Tensor) -> list[Tensor]:
        given, state = Inputs.of(values[: len(inputs)]), state_of(values[len(inputs) :], blocks)
        metrics = given.metrics(blocks)
        after = leapfrog_step(state, given.step_size, potential=potential, mechanics=mechanics, metrics=metrics)
        return flat_state(after, blocks)

    def last(*values: Tensor) -> list[Tensor]:
        given, before, *states = Inputs.of(values[: len(inputs)]), *values[len(inputs) :]
        start, end = (state_of(states[k : k + carried], blocks) for k in (0, carried))
        return finish(given, start, before, end)

    return native_loop(first, step, last, carried, inputs, chains)
