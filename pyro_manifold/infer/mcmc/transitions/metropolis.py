"""Metropolis acceptance decision, vectorised over chains."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions.states import Statistics

DIVERGENCE_THRESHOLD = 1000.0
"""Energy error beyond which a trajectory counts as divergent (as in Stan and Pyro)."""


class Decision(NamedTuple):
    """Acceptance decision on each chain's proposal; every entry has shape ``(chains,)``."""

    accepted: Tensor
    probability: Tensor
    energy_error: Tensor

    @property
    def statistics(self) -> Statistics:
        """Statistics of the decision, with the names used by ArviZ."""
        return {
            "acceptance_rate": self.probability,
            "accepted": self.accepted,
            "diverging": self.energy_error > DIVERGENCE_THRESHOLD,
            "energy_error": self.energy_error,
        }


def metropolis(current_energy: Tensor, proposed_energy: Tensor, uniform: Tensor) -> Decision:
    r"""Accept each chain's proposal with probability $\min(1, e^{-\Delta H})$.

    An energy error that is not finite counts as infinite, also if the potential is -∞ (an unbounded density): such a
    proposal is never accepted and is divergent.

    Args:
        current_energy: total energies of the current states, ``(chains,)``.
        proposed_energy: total energies of the proposals.
        uniform: uniform random numbers in [0, 1), ``(chains,)``; a proposal is accepted if its probability is larger.
    """
    energy_error = proposed_energy - current_energy
    energy_error = torch.where(torch.isfinite(energy_error), energy_error, torch.inf)
    probability = (-energy_error).exp().clamp(max=1)
    return Decision(uniform < probability, probability, energy_error)
