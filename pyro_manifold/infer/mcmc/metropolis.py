"""The Metropolis decision, for all chains at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.states import Statistics, uniform_like

DIVERGENCE_THRESHOLD = 1000.0
"""Energy error beyond which a trajectory counts as divergent (as in Stan and Pyro)."""


class Decision(NamedTuple):
    """What becomes of each chain's proposal; every entry has shape ``(chains,)``."""

    accepted: Tensor
    probability: Tensor
    energy_error: Tensor

    @property
    def statistics(self) -> Statistics:
        """By ArviZ's names."""
        return {
            "acceptance_rate": self.probability,
            "accepted": self.accepted,
            "diverging": self.energy_error > DIVERGENCE_THRESHOLD,
            "energy_error": self.energy_error,
        }


def metropolis(current_energy: Tensor, proposed_energy: Tensor, random: torch.Generator) -> Decision:
    r"""Accept each chain's proposal with probability :math:`\min(1, e^{-\Delta H})`.

    An energy error that is not finite counts as infinite, also where the potential fell to -∞ (a density
    without bound): such a proposal is never accepted and is divergent.

    Args:
        current_energy: total energies of the present states, ``(chains,)``.
        proposed_energy: total energies of the proposals.
        random: where the coins come from.
    """
    energy_error = proposed_energy - current_energy
    energy_error = torch.where(torch.isfinite(energy_error), energy_error, torch.inf)
    probability = (-energy_error).exp().clamp(max=1)
    return Decision(uniform_like(probability, random) < probability, probability, energy_error)
