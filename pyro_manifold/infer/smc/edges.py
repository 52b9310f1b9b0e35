"""Numerical problems of a model: log densities that are NaN, and priors with mass at the limits of floating point."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density import Sites
from pyro_manifold.infer.descent import Energies
from pyro_manifold.infer.smc.annealing import Visited

_PROBED = 512  # points
_MANY_AT_THE_EDGE = 0.03  # fraction of the draws
_FEWEST_AT_THE_EDGE = 4


class NumericalProblems(NamedTuple):
    """Counts of points at which a model has numerical problems.

    Attributes:
        nan: number of points near the particles with a log density of NaN.
        probed: number of points evaluated.
        tied: number of draws from the prior with the same extreme value of a coordinate.
        drawn: number of draws from the prior.
    """

    nan: int = 0
    probed: int = 0
    tied: int = 0
    drawn: int = 0

    def warn(self) -> None:
        """Warn if the counts are too large to be explained by rounding."""
        if self.nan:
            warnings.warn(
                f"The log density is NaN at {self.nan} of {self.probed} points near the particles, which are "
                "treated as having zero density, so that the evidence may be too low: check the model and its "
                "data, and return -inf where the likelihood is zero.",
                stacklevel=4,
            )
        if self.tied >= max(_FEWEST_AT_THE_EDGE, _MANY_AT_THE_EDGE * self.drawn):
            warnings.warn(
                f"{self.tied} of {self.drawn} draws from the prior are at the limit of floating-point precision, "
                "such as 1 - ε in place of values nearer to 1, so that the evidence and its error are wrong by "
                "about this fraction: use float64, or a prior with less mass at its ends.",
                stacklevel=4,
            )


def nan_near(energies: Energies[str], states: Visited, manifolds: Collection[str]) -> tuple[int, int]:
    """Count points with an energy of NaN among reflections of one particle at another.

    NaN in trajectories can be legitimate, such as gradients where the density is zero; here only densities count.

    Returns:
        Their number, and the number of points evaluated.
    """
    count = min(_PROBED, len(states.energy) // 2)
    rows = torch.linspace(0, len(states.energy) - 1, 2 * count, device=states.energy.device).long()
    here, there = states.at(rows[:count]).sites, states.at(rows[count:].flip(0)).sites
    beside = {name: x if name in manifolds else 2 * x - there[name] for name, x in here.items()}
    return int(energies(beside)[0].isnan().sum()), count


def tied_at_an_end(draws: Sites, manifolds: Collection[str]) -> int:
    """Count independent draws that share the largest or smallest value of a coordinate, for the worst coordinate."""
    most = 0
    for name in draws.keys() - manifolds:
        x = draws[name].reshape(len(draws[name]), -1)
        ends: list[Tensor] = [x.amin(0), x.amax(0)]
        varies = ends[0] < ends[1]
        counts = torch.stack([((x == end) & varies).sum(0) for end in ends])
        most = max(most, int(counts.max()) if counts.numel() else 0)
    return most if most > 1 else 0
