"""End-of-run warnings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.diagnostics import (
    HotMomenta,
    StuckChains,
    named,
    stuck_chains,
    temperature_of_hot_chains,
    temperature_of_hottest_coordinate,
)

_LARGEST_ROUNDING = 0.02  # of a log density


def warn_of_chains(
    samples: Mapping[str, Tensor], statistics: Mapping[str, Tensor], max_temperature_site: str | None = None
) -> None:
    """Warn about chains that hardly moved, and about a momentum temperature that is too high.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        statistics: ``{name: (chains, draws)}``.
        max_temperature_site: the site with the highest momentum temperature, if known.
    """
    stuck = stuck_chains(samples, statistics)
    if stuck:
        chains = next(len(value) for value in [*statistics.values(), *samples.values()])
        where = named(stuck).capitalize() if chains > 1 else "The chain"
        whose = "their" if len(stuck) > 1 else "its"
        message = (
            f"{where} moved in fewer than 5 % of iterations after warm-up, so that {whose} draws do not represent "
            "the posterior: increase warmup_steps, or use initial values nearer to the typical set (init_strategy "
            "of the kernel, or initial_params), a smaller step_size or float64."
        )
        warnings.warn(StuckChains(message, chains=stuck, remedy="warmup_steps"), stacklevel=4)
    _warn_of_heat(statistics, max_temperature_site)
    _warn_of_precision(statistics)
    _warn_off_manifold(statistics)


def _warn_off_manifold(statistics: Mapping[str, Tensor]) -> None:
    """Warn if draws are off their manifolds by more than rounding errors that accumulate."""
    error = statistics.get("orthogonality_error", torch.empty(0))
    largest = float(error.max()) if error.numel() else 0.0
    rounding = torch.finfo(error.dtype).eps
    if not largest <= rounding**0.5:
        warnings.warn(
            f"Draws are off their manifold by up to {largest:.1e}, where one rounding is {rounding:.0e}: the step of a "
            "kernel must end on the manifold (Manifold.restoration removes rounding errors).",
            stacklevel=5,
        )


def _warn_of_precision(statistics: Mapping[str, Tensor]) -> None:
    """Warn if the rounding of the log density is as large as the energy errors that decide on acceptance."""
    if "lp" not in statistics or not statistics["lp"].numel():
        return
    density = statistics["lp"]
    size = float(density.abs().median())
    rounding = torch.finfo(density.dtype).eps * size
    if rounding > _LARGEST_ROUNDING:
        remedy = "Check the data, the scales of the model and the initial values"
        if density.dtype != torch.float64:
            remedy = "Use float64, by torch.set_default_dtype(torch.float64) and data of that dtype"
        warnings.warn(
            f"The log density is near {float(density.median()):.4g}, where {density.dtype} rounds it to {rounding:.2g} "
            "and sums of many terms to more: trajectories may be rejected, and steps shortened, for rounding alone. "
            f"{remedy}.",
            stacklevel=5,
        )


def _warn_of_heat(statistics: Mapping[str, Tensor], max_temperature_site: str | None) -> None:
    """Warn if the momentum temperature is too high, over all coordinates or for a single one."""
    hot = temperature_of_hot_chains(statistics)
    found = hot or temperature_of_hottest_coordinate(statistics)
    if found is None:
        return
    measured, wanted = found
    named_site = "" if max_temperature_site is None else f" of site '{max_temperature_site}'"
    whose, where = ("chains", "") if hot else (f"one coordinate{named_site}", " there")
    scales = "scales" if max_temperature_site is None else f"scales={{'{max_temperature_site}': ...}}"
    message = (
        f"The momenta of {whose} are at a temperature of {measured:.3g} instead of {wanted:.3g}: minibatch noise or "
        f"a large step size heats the chains, so that the variance of draws{where} is too large. Use a smaller "
        f"step_size, smaller steps of single sites ({scales}), larger batches or more friction."
    )
    warnings.warn(HotMomenta(message, site=max_temperature_site, remedy="step_size"), stacklevel=5)
