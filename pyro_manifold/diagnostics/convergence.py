"""Convergence and effective sample sizes of each entry of a site."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.diagnostics.installed_arviz import effective_sizes, imported_arviz

Measure = Literal["r_hat", "ess_bulk", "ess_tail", "ess_mean"]

_UNITS_OF_ROUNDING = 100


def convergence(
    values: Tensor, measures: tuple[Measure, ...] = ("r_hat", "ess_bulk", "ess_tail")
) -> dict[Measure, Tensor]:
    r"""Compute rank-normalised split R-hat and effective sample sizes, by ArviZ.

    R-hat compares the variances between and within halves of chains, after rank normalisation of the values and of
    their distances from the median; ``ess_bulk`` is the effective sample size of the normal scores, ``ess_tail`` the
    smaller one of the 5 % and 95 % quantiles, ``ess_mean`` that of the values.

    Args:
        values: ``(chains, draws, ...)``, at least 4 draws. With a single chain R-hat compares its quarters.
        measures: the measures to compute; R-hat takes longest.

    Returns:
        ``{measure: (...)}`` in float64 on the CPU; NaN for entries that do not vary, and infinite R-hat for chains that
        are constant at different values.

    Raises:
        ValueError: for fewer than 4 draws.

    Source: Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021, Bayesian Analysis 16.

    Examples:
        >>> import torch
        >>> found = convergence(torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0)))
        >>> bool((found["r_hat"] < 1.01).all()), bool((found["ess_tail"] > 1000).all())
        (True, True)
    """
    if values.dim() < 2 or values.shape[1] < 4:
        raise ValueError(
            f"convergence: values have shape {tuple(values.shape)}, expected 4 draws or more of each chain."
        )
    shape = values.shape[2:]
    flat = values.detach().flatten(2).cpu() if shape else values.detach().cpu().unsqueeze(-1)
    varying = varies(flat)
    found = {measure: torch.full((flat.shape[-1],), torch.nan, dtype=torch.float64) for measure in measures}
    if bool(varying.any()):
        array = flat[..., varying].double().numpy()
        for measure in measures:
            found[measure][varying] = torch.as_tensor(_measured(array, measure), dtype=torch.float64)
    return {measure: value.reshape(shape) for measure, value in found.items()}


def varies(values: Tensor) -> Tensor:
    """Return a mask of entries that vary by more than rounding or are not finite, ``(entries,)``.

    Values are ``(chains, draws, entries)``. Row norms of a square orthonormal matrix, for instance, are 1 up to
    rounding, and the R-hat of rounding errors is meaningless.
    """
    unit = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    values = values.double()
    spread = values.amax((0, 1)) - values.amin((0, 1))
    # Written so that NaN counts as varying.
    return ~(spread <= _UNITS_OF_ROUNDING * unit * values.abs().amax((0, 1)))


def _measured(array: np.ndarray, measure: Measure) -> np.ndarray:
    import xarray

    if measure == "r_hat" and len(array) == 1:
        half = array.shape[1] // 2
        array = np.concatenate([array[:, :half], array[:, -half:]])
    if array.shape[1] < 4:
        return np.full(array.shape[2], np.nan)
    table = xarray.Dataset({"x": (("chain", "draw", "entry"), array)})
    with np.errstate(all="ignore"):  # chains that do not move have variance zero
        if measure == "r_hat":
            found = np.asarray(imported_arviz().rhat(table)["x"])
            return np.where(np.isnan(found) & np.isfinite(array).all((0, 1)), np.inf, found)
        return np.asarray(effective_sizes(table, measure.removeprefix("ess_"))["x"])


def nested_r_hat(draws: Tensor, num_superchains: int) -> Tensor:
    r"""Compute nested R-hat, for many short chains in groups (superchains) that begin at the same point.

    With K superchains of M chains of N draws each, $\bar\theta_{mk}$ the mean of a chain, $s^2_{mk}$ its
    variance (over N - 1) and $\bar\theta_k$ the mean of a superchain,

    $$
    \hat R_\nu = \sqrt{1 + B / W}, \quad B = \operatorname{var}_k(\bar\theta_k), \quad
    W = \frac1K \sum_k \Big(\operatorname{var}_m(\bar\theta_{mk}) + \frac1M \sum_m s^2_{mk}\Big),
    $$

    variances over K - 1 and M - 1. With many chains M the variance B of superchains tends to the part that the initial
    points still explain, for chains of any length, whereas R-hat needs long chains. For independent draws nested R-hat
    is about $\sqrt{1 + 1/(MN)}$; for chains that stay near initial points of variance $\tau^2$, in units of the
    variance of their draws, it is about $\sqrt{1 + \tau^2}$. It is not rank-normalised. If the chains of a group begin
    at different points, B has only an M-th of the variance of these, and a value near 1 is no evidence of convergence.

    Args:
        draws: ``(chains, draws, ...)``; superchain k has the chains k·M to (k + 1)·M - 1.
        num_superchains: K, at least 2, a divisor of the number of chains.

    Returns:
        ``(...)``; NaN for entries that do not vary.

    Raises:
        ValueError: for another number of superchains.

    Source: Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari & Gelman, Bayesian Analysis 2024, equations 15–19.

    Examples:
        >>> import torch
        >>> draws = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))  # 64 chains of 5 draws
        >>> round(float(nested_r_hat(draws, 8)), 3)
        1.004
    """
    check_superchains(num_superchains, len(draws))
    draws = draws.detach()
    draws = draws if draws.is_floating_point() else draws.double()
    chains, length = draws.shape[:2]
    per_superchain = chains // num_superchains
    means = draws.mean(1).unflatten(0, (num_superchains, per_superchain))
    between = means.mean(1).var(0)
    within = torch.zeros_like(between)
    if length > 1:
        within = draws.var(1).mean(0)
    if per_superchain > 1:
        within = within + means.var(1).mean(0)
    # 0 / 0 is NaN, as intended; superchains that stay at different points have infinity.
    return (1 + between / within).sqrt()


def check_superchains(num_superchains: object, chains: int) -> None:
    """Raise ValueError for a number of superchains into which these chains cannot be divided."""
    whole = isinstance(num_superchains, int) and not isinstance(num_superchains, bool)
    if not whole or num_superchains < 2 or chains % num_superchains:  # type: ignore[operator]
        raise ValueError(
            f"num_superchains={num_superchains!r}, expected an integer from 2 that divides the number of chains, "
            f"{chains}."
        )
