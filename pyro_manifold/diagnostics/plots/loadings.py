"""A heat map of loadings and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws
from pyro_manifold.diagnostics.plots.axes import as_tensor, axes_for, check_one_site, labels_of, names_of, thinned

_CERTAIN = 0.95
_MOST_CELLS_WITH_TEXT = 120


def plot_loadings(
    draws: Any,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    r"""Plot a heat map of posterior means of loadings, with their uncertainty.

    The colour is the mean, and in small tables the text is mean ± standard deviation. Where the sign of an entry has a
    posterior probability below 95 %, the text is grey; in larger tables, which have no text, a dot marks these cells.
    Align the draws first if signs, order or rotation of columns are unknown.

    Args:
        draws: ``(chains, draws, n, p)``, one site outside plates; a tensor, an array or
            a variable of an InferenceData.
        row_names: n names; None takes those of an InferenceData, or numbers the rows.
        column_names: p names; None does as for the rows.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite or not of such a shape, or names of another number.

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> ax = plot_loadings(torch.eye(3, 2).expand(2, 10, 3, 2), row_names=["a", "b", "c"])
        >>> " ".join(label.get_text() for label in ax.get_yticklabels())
        'a b c'
    """
    owner = "plot_loadings"
    row_labels, column_labels = labels_of(draws, -2), labels_of(draws, -1)
    draws = as_tensor(draws)
    check_draws(draws, owner)
    check_one_site(draws, owner)
    n, p = draws.shape[-2:]
    rows = names_of(row_names or row_labels, n, "row_names", owner)
    columns = names_of(column_names or column_labels, p, "column_names", owner)
    # Space in inches for names, cells and colour bar.
    width = 1.4 + 0.085 * max(map(len, rows)) + 1.05 * min(p, 10)
    ax = axes_for(ax, owner, size=(width, 0.8 + 0.3 * min(n, 30)))
    values = draws.detach().flatten(0, 1).cpu().double()
    mean = values.mean(0)
    largest = float(mean.abs().max()) or 1.0
    image = ax.imshow(mean.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    ax.set_xticks(range(p), columns)
    ax.set_yticks(*thinned(rows))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.xaxis.tick_top()
    scale = ax.figure.colorbar(image, ax=ax, pad=0.12 / p**0.5)
    scale.ax.set_title("mean", fontsize="medium")
    scale.outline.set_visible(False)
    certain = torch.maximum((values > 0).double().mean(0), (values < 0).double().mean(0)) >= _CERTAIN
    if n * p <= _MOST_CELLS_WITH_TEXT:
        _write_cells(ax, mean, values.std(0, correction=0), certain, largest)
    else:
        doubtful = (~certain).nonzero().numpy()
        ax.scatter(doubtful[:, 1], doubtful[:, 0], s=6, color="0.35", linewidths=0)
    return ax


def _write_cells(ax: Any, mean: Tensor, deviation: Tensor, certain: Tensor, largest: float) -> None:
    # Two decimals unless all entries are so small or so large that two decimals are uninformative.
    decimals = 2 if 0.1 <= largest < 100 else max(0, 1 - math.floor(math.log10(largest)))
    for i, j in torch.cartesian_prod(*map(torch.arange, mean.shape)).tolist():
        dark = abs(float(mean[i, j])) > 0.6 * largest
        colour = "0.5" if not certain[i, j] else "white" if dark else "black"
        middle = round(float(mean[i, j]), decimals) + 0.0  # no negative zero
        text = f"{middle:.{decimals}f} ± {float(deviation[i, j]):.{decimals}f}".replace("-", "−")
        ax.text(j, i, text, ha="center", va="center", color=colour, fontsize="small")
