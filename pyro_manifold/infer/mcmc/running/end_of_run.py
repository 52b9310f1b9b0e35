"""End-of-run warnings, and symmetries of the draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.density import Target
from pyro_manifold.diagnostics import (
    HotMomenta,
    StuckChains,
    Symmetry,
    agreement,
    align_draws,
    named,
    stuck_chains,
    symmetries,
    temperature_of_hot_chains,
    temperature_of_hottest_coordinate,
    unexplained,
)

_LARGEST_ROUNDING = 0.02  # of a log density


def warn_of_chains(
    samples: Mapping[str, Tensor], statistics: Mapping[str, Tensor], hottest_site: str | None = None
) -> None:
    """Warn about chains that hardly moved, and about a momentum temperature that is too high.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        statistics: ``{name: (chains, draws)}``.
        hottest_site: the site with the highest momentum temperature, if known.
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
    _warn_of_heat(statistics, hottest_site)
    _warn_of_precision(statistics)


def _warn_of_precision(statistics: Mapping[str, Tensor]) -> None:
    """Warn if the rounding of the log density is as large as the energy errors that decide on acceptance."""
    if "lp" not in statistics or not statistics["lp"].numel():
        return
    density = statistics["lp"]
    size = float(density.abs().median())
    rounding = torch.finfo(density.dtype).eps * size
    if rounding > _LARGEST_ROUNDING:
        warnings.warn(
            f"The log density is near {float(density.median()):.4g}, where {density.dtype} rounds it to {rounding:.2g} "
            "and sums of many terms to more: trajectories may be rejected, and steps shortened, for rounding alone. "
            "Use float64, by torch.set_default_dtype(torch.float64) and data of that dtype.",
            stacklevel=5,
        )


def _warn_of_heat(statistics: Mapping[str, Tensor], hottest_site: str | None) -> None:
    """Warn if the momentum temperature is too high, over all coordinates or for a single one."""
    hot = temperature_of_hot_chains(statistics)
    found = hot or temperature_of_hottest_coordinate(statistics)
    if found is None:
        return
    measured, wanted = found
    named_site = "" if hottest_site is None else f" of site '{hottest_site}'"
    whose, where = ("chains", "") if hot else (f"one coordinate{named_site}", " there")
    scales = "scales" if hottest_site is None else f"scales={{'{hottest_site}': ...}}"
    message = (
        f"The momenta of {whose} are at a temperature of {measured:.3g} instead of {wanted:.3g}: minibatch noise or "
        f"a large step size heats the chains, so that the variance of draws{where} is too large. Use a smaller "
        f"step_size, smaller steps of single sites ({scales}), larger batches or more friction."
    )
    warnings.warn(HotMomenta(message, site=hottest_site, remedy="step_size"), stacklevel=5)


def found_symmetries(target_of: Callable[[], Target | None], samples: Mapping[str, Tensor]) -> list[Symmetry] | None:
    """Return the symmetries of a density at draws of a run; None if the density cannot be evaluated.

    Args:
        target_of: returns the target of the run, or None if the density is not known; it may raise an error.
        samples: draws ``{site: (chains, draws, ...)}``.
    """
    try:
        target = target_of()
        if target is None or not set(samples) >= {*target.manifolds, *target.transforms}:
            return None  # save_params left sites out
        found = symmetries(target, {name: value.flatten(0, 1) for name, value in samples.items()})
        return [each for each in found if all(_is_finite(samples[name]) for name in each.names)]
    except Exception:  # a model can fail in any way; the table is then shown without symmetries
        return None


def _is_finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())


class KnownSymmetries:
    """Symmetries of the draws of a run, found once for the same draws."""

    def __init__(self) -> None:
        self._samples: Mapping[str, Tensor] | None = None
        self._found: list[Symmetry] | None = None

    def of(self, target_of: Callable[[], Target | None], samples: Mapping[str, Tensor]) -> list[Symmetry] | None:
        """Return `found_symmetries`, cached for successive calls with the same dictionary ``samples``."""
        if samples is not self._samples:
            self._samples, self._found = samples, found_symmetries(target_of, samples)
        return self._found

    def __reduce__(self) -> tuple[type[KnownSymmetries], tuple[()]]:
        return KnownSymmetries, ()  # recomputed in a copy of the run, such as in another process


def aligned_draws(samples: Mapping[str, Tensor], known: Sequence[Symmetry] | None, owner: str) -> dict[str, Tensor]:
    """Return draws aligned by the symmetries of the posterior.

    Raises:
        ValueError: if symmetries are not known, with the name ``owner`` of the caller.
    """
    if known is None:
        raise ValueError(
            f"{owner}(align=True): the symmetries of this posterior are not known, since its density cannot be "
            "evaluated (for a kernel of another package, or with sites missing in save_params): align the draws of "
            "a site by pyro_manifold.diagnostics.align_signs, align_signs_and_permutations or align_rotations."
        )
    return align_draws(samples, known).draws


def reasons(
    samples: Mapping[str, Tensor],
    symmetries: Sequence[Symmetry] | None,
    log_density: Tensor | None,
    num_superchains: int | None,
    divergences: int = 0,
) -> Iterator[str]:
    """Yield explanations of disagreement between chains, shown below the table of draws as they were sampled.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        symmetries: symmetries of the posterior; None if not known.
        log_density: ``(chains, draws)``.
        num_superchains: for nested R-hat.
        divergences: number of draws that are divergences.
    """
    for symmetry in symmetries or []:
        yield symmetry.sentence()
        yield agreement(samples, symmetry)
    if symmetries is not None and samples:
        sentence = unexplained(samples, symmetries, log_density, num_superchains, divergences)
        if sentence is not None:
            yield sentence
