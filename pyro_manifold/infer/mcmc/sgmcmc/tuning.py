"""Adaptation of stochastic-gradient kernels: the order of batches, and the masses of sites where they are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from pyro_manifold.density import Batches
from pyro_manifold.infer.mcmc.checks import check_positive
from pyro_manifold.infer.mcmc.sgmcmc.site_masses import SiteMasses
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings
from pyro_manifold.infer.mcmc.transitions import Statistics
from pyro_manifold.store import Saved

Scales = Mapping[str, float] | Literal["adapt"]


class BatchAdaptation(Saved):
    """Settings of iterations; the only states are the seed of the order of batches, and masses that are learned.

    Args:
        batches: batches of the data.
        warmup_steps: iterations of warm-up.
        masses: adaptation of masses; None for fixed masses.
    """

    def __init__(self, batches: Batches, warmup_steps: int = 0, masses: SiteMasses | None = None) -> None:
        changing = () if batches.is_full else ("_batches",)
        self.changing = changing if masses is None else (*changing, "masses")  # type: ignore[misc]
        self._batches, self._warmup_steps, self.masses = batches, warmup_steps, masses

    def settings(self, iteration: int) -> IterationSettings:
        """Return the settings of an iteration, counted from 1."""
        number = iteration if iteration <= self._warmup_steps else iteration - self._warmup_steps
        if self.masses is None:
            return IterationSettings(number)
        return IterationSettings(number, self.masses.metrics, self.masses.changed_before(iteration))

    def learn(
        self,
        iteration: int,
        before: StochasticState,
        after: StochasticState,
        statistics: Statistics,
        random: torch.Generator,
    ) -> None:
        """Adapt the masses, if they are learned."""
        if self.masses is not None:
            self.masses.learn(iteration, before, after, random)


def checked_scales(scales: object) -> Scales:
    """Return the argument ``scales`` of a kernel, with floats.

    Raises:
        ValueError: unless it is ``"adapt"`` or a dictionary of positive numbers, or None.
    """
    if scales is None or scales == "adapt":
        return "adapt" if scales else {}
    if not isinstance(scales, Mapping):
        raise ValueError(f"scales={scales!r}, expected {{site: scale}} or 'adapt'.")
    check_positive(**{f"scales[{name!r}]": scale for name, scale in scales.items()})
    return {name: float(scale) for name, scale in scales.items()}
