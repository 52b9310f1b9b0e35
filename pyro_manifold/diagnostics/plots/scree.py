"""Scales of components in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_real
from pyro_manifold.diagnostics.plots.axes import COLOURS, as_tensor, axes_for, labels_of, names_of, thinned
from pyro_manifold.diagnostics.plots.credible import credible_mass, in_percent, shortest_interval


def plot_scree(
    scales: Any,
    noise: Any = None,
    column_names: Sequence[str] | None = None,
    prob: float | None = None,
    ax: Any = None,
) -> Any:
    r"""Plot the scale of each component, its posterior mean and shortest interval (Cattell's scree plot).

    Intervals are the shortest ones that contain a share ``prob`` of the draws, as the vertical axis states. With
    ``noise``, a line and a band show the posterior mean and the interval of the noise's scale. Align the draws
    first if the order of the components is unknown. Variances are drawn by giving ``scales**2``.

    Args:
        scales: ``(chains, draws, p)``; a tensor, an array or a variable of an InferenceData.
        noise: ``(chains, draws)``, of the same draws; None draws no band.
        column_names: p names of the components; None takes those of an InferenceData, or numbers the components.
        prob: probability of the intervals; None is that of ArviZ, ``rcParams["stats.ci_prob"]``.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite, not of such shapes or fewer than two, names of another
            number, and a probability outside (0, 1).

    Source: Cattell, R. B. (1966). The scree test for the number of factors. Multivariate Behavioral Research 1,
    245–276.

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> scales = torch.tensor([3.0, 2.0, 1.0]) + 0.1 * torch.randn(2, 50, 3)
        >>> ax = plot_scree(scales, noise=0.5 + 0.01 * torch.randn(2, 50))
        >>> " ".join(label.get_text() for label in ax.get_xticklabels())
        '1 2 3'
    """
    owner = "plot_scree"
    names, mass = column_names or labels_of(scales, -1), credible_mass(prob, owner)
    scales = _check(as_tensor(scales), "scales", ("chains", "draws", "p"), owner)
    names = names_of(names, scales.shape[-1], "column_names", owner)
    values = scales.detach().flatten(0, 1).cpu().double()
    band = None
    if noise is not None:
        band = _check(as_tensor(noise), "noise", ("chains", "draws"), owner)
        if band.shape != scales.shape[:2]:
            raise ValueError(
                f"{owner}: noise has shape {tuple(band.shape)}, expected {tuple(scales.shape[:2])} as the draws of "
                "scales; take both from the same draws."
            )
        band = band.detach().flatten().cpu().double()
    ax = axes_for(ax, owner, size=(1.6 + 0.45 * min(len(names), 16), 3.2))
    low, high = shortest_interval(values, mass)
    mean, places = values.mean(0), torch.arange(len(names))
    ax.plot(places, mean, color="0.75", lw=1, zorder=1)
    # The mean of a very skewed distribution may be outside of the shortest interval.
    ax.vlines(places, low, high, color=COLOURS[0], lw=1.5, zorder=2)
    ax.plot(places, mean, "o", color=COLOURS[0], ms=5, zorder=3)
    if band is not None:
        low, high = shortest_interval(band, mass)
        ax.axhspan(float(low), float(high), color=COLOURS[1], alpha=0.2, lw=0)
        ax.axhline(float(band.mean()), color=COLOURS[1], lw=1)
        ax.annotate(
            "noise", (0.02, float(high)), (0, 2),
            xycoords=ax.get_yaxis_transform(), textcoords="offset points", color=COLOURS[1],
        )  # fmt: skip
    ticks, written = thinned(names)
    ax.set_xticks(ticks, written)
    ax.set(xlabel="component", ylabel=f"scale, shortest {in_percent(mass)} intervals")
    ax.set_ylim(min(0.0, ax.get_ylim()[0]), None)
    ax.margins(x=0.12)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _check(values: Any, name: str, shape: tuple[str, ...], owner: str) -> Tensor:
    """Return finite real draws with so many dimensions, at least two draws, or raise an error."""
    check_real(values, name, owner)
    if values.dim() != len(shape) or values.shape[0] * values.shape[1] < 2:
        raise ValueError(
            f"{owner}: {name} has shape {tuple(values.shape)}, expected ({', '.join(shape)}) with at least two draws; "
            "take it from mcmc.get_samples(group_by_chain=True)."
        )
    return values
