r"""Swap move between neighbouring levels, even and odd pairs in turn.

$$ \alpha = \min\bigl(1, e^{(\beta_k - \beta_{k+1})(L_k - L_{k+1})}\bigr), $$

L minus the log likelihood. Even and odd pairs alternate, so that a replica that was swapped continues in its direction
and takes O(N) swaps from the prior to the posterior; with random pairs it would take O(N²) (Okabe, Kawata, Okamoto &
Mikami, Chemical Physics Letters 335, 2001; Syed, Bouchard-Côté, Deligiannidis & Doucet, JRSS-B 84, 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density import INVERSE_TEMPERATURE
from pyro_manifold.infer.mcmc.mechanics import Metrics, State
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Potential, Statistics, uniform_like

BETA: Block = (INVERSE_TEMPERATURE,)


class ReplicaSettings(NamedTuple):
    """Settings of an iteration of replica exchange; the first four are those of `HamiltonianSettings`.

    Attributes:
        step_size: ε of each replica.
        num_steps: number of leapfrog steps.
        metrics: masses of all blocks.
        persistence: 0, full refreshment of momenta.
        parity: 0 to swap levels 0 and 1, 2 and 3, …; 1 for 1 and 2, 3 and 4, …
        fresh: draws from the prior, ``(groups, ...)``, for level 0 after the swap; None to leave it as it is.
    """

    step_size: Tensor
    num_steps: int
    metrics: Metrics
    persistence: float = 0.0
    parity: int = 0
    fresh: Blocks | None = None


class Swap:
    """Transition that swaps neighbouring levels and replaces level 0 by draws from the prior.

    Chains are rows ``level · groups + group``, level 0 the prior; each group has a replica at every level. A row keeps
    its β, and positions move between rows. Energy and gradient are recomputed once, after both operations.

    The statistics of each row are ``"swap_probability"`` with the row one level above (also where the pair was not
    due to swap), ``"came_from"``, the previous level of its replica, ``"negative_log_likelihood"``, L
    before the swap, and ``"lp"``.

    Args:
        levels: number of levels.
        potential: potential energy and gradient of positions.
    """

    def __init__(self, levels: int, potential: Potential) -> None:
        self._levels, self._potential = levels, potential

    def __call__(self, state: State, settings: ReplicaSettings, random: torch.Generator) -> tuple[State, Statistics]:
        beta, negative_log_likelihood = (
            part[BETA].reshape(self._levels, -1) for part in (state.position, state.gradient)
        )
        probability = swap_probability(beta, negative_log_likelihood)
        due = torch.arange(self._levels - 1, device=beta.device).unsqueeze(-1) % 2 == settings.parity
        swapped = (due & (uniform_like(probability, random) < probability)).long()
        nothing = torch.zeros_like(swapped[:1])
        level = torch.arange(self._levels, device=beta.device).unsqueeze(-1)
        came_from = level + torch.cat([swapped, nothing]) - torch.cat([nothing, swapped])
        groups = beta.shape[1]
        rows = (came_from * groups + torch.arange(groups, device=beta.device)).flatten()
        position = {block: x if block == BETA else x[rows] for block, x in state.position.items()}
        if settings.fresh is not None:
            for block, fresh in settings.fresh.items():
                position[block] = torch.cat([fresh, position[block][groups:]])
        energy, gradient = self._potential(position)
        return state._replace(position=position, energy=energy, gradient=gradient), {
            "swap_probability": torch.cat([probability, torch.zeros_like(probability[:1])]).flatten(),
            "came_from": came_from.flatten(),
            "negative_log_likelihood": negative_log_likelihood.flatten(),
            "lp": -energy,
        }


def swap_probability(inverse_temperature: Tensor, negative_log_likelihood: Tensor) -> Tensor:
    """Compute α between neighbours, from ``(levels, groups)`` to ``(levels - 1, groups)``."""
    log_ratio = (inverse_temperature[:-1] - inverse_temperature[1:]) * (
        negative_log_likelihood[:-1] - negative_log_likelihood[1:]
    )
    return log_ratio.exp().clamp(max=1).nan_to_num(0.0)
