"""The Metropolis decision, for all chains at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.leapfrog import Blocks, State

DIVERGENCE_THRESHOLD = 1000.0
"""Energy error beyond which a trajectory counts as divergent (as in Stan and Pyro)."""


class TransitionInfo(NamedTuple):
    """What diagnostics need to know of one transition; every entry has shape ``(chains,)``."""

    acceptance_probability: Tensor
    accepted: Tensor
    diverging: Tensor
    energy_error: Tensor
    energy: Tensor
    """Total energy, kinetic and potential, of the state that was chosen."""
    log_density: Tensor


def metropolis(
    current: State, proposal: State, current_energy: Tensor, proposal_energy: Tensor
) -> tuple[State, TransitionInfo]:
    r"""Accept each chain's proposal with probability :math:`\min(1, e^{-\Delta H})`.

    An energy error that is not finite counts as infinite, also where the potential fell to -∞ (a density
    without bound): such a proposal is never accepted and is divergent.

    Args:
        current: states to keep where the proposal is rejected.
        proposal: ends of the trajectories.
        current_energy: total energies of ``current``, ``(chains,)``.
        proposal_energy: total energies of ``proposal``.

    Returns:
        The next states and what happened.
    """
    energy_error, probability, accepted = judge(current_energy, proposal_energy)

    def choose_blocks(new: Blocks, old: Blocks) -> Blocks:
        return {block: select(accepted, new[block], old[block]) for block in new}

    state = State(
        choose_blocks(proposal.position, current.position),
        choose_blocks(proposal.momentum, current.momentum),
        select(accepted, proposal.energy, current.energy),
        choose_blocks(proposal.gradient, current.gradient),
    )
    diverging = energy_error > DIVERGENCE_THRESHOLD
    energy = select(accepted, proposal_energy, current_energy)
    return state, TransitionInfo(probability, accepted, diverging, energy_error, energy, -state.energy)


def judge(current_energy: Tensor, proposal_energy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Energy error (infinite where it is not finite), acceptance probability and decision, each ``(chains,)``."""
    energy_error = proposal_energy - current_energy
    energy_error = torch.where(torch.isfinite(energy_error), energy_error, torch.inf)
    probability = (-energy_error).exp().clamp(max=1)
    return energy_error, probability, torch.rand_like(probability) < probability


def select(accepted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new value of each chain that accepted, the old of each other."""
    return torch.where(accepted.reshape(-1, *[1] * (new.dim() - 1)), new, old)
