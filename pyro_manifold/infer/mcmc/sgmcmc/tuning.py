"""Adaptation of stochastic-gradient kernels: the order of batches, and the masses of sites where they are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyro_manifold.density import Batches
from pyro_manifold.infer.mcmc.adaptation import Adaptation, Adapter
from pyro_manifold.infer.mcmc.checks import check_positive
from pyro_manifold.infer.mcmc.sgmcmc.site_masses import SiteMasses, windows
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings

Scales = Mapping[str, float] | Literal["adapt"]


class BatchAdaptation(Adaptation[IterationSettings]):
    """Settings of iterations; the only states are the seed of the order of batches, and what adapters learn.

    Args:
        batches: batches of the data.
        warmup_steps: iterations of warm-up.
        masses: adapter of masses; None for fixed masses.
        **others: further adapters by name.
    """

    def __init__(
        self,
        batches: Batches,
        warmup_steps: int = 0,
        masses: SiteMasses | None = None,
        **others: Adapter[Any],
    ) -> None:
        self._batches, self._warmup_steps, self.masses = batches, warmup_steps, masses
        if not batches.is_full:
            self.changing = (*self.changing, "_batches")  # type: ignore[misc]
        super().__init__(windows(warmup_steps), ({} if masses is None else {"masses": masses}) | others)

    def initial_settings(self, iteration: int) -> IterationSettings:
        return IterationSettings(iteration if iteration <= self._warmup_steps else iteration - self._warmup_steps)


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
