"""Evidences of several models."""

from __future__ import annotations

from typing import Any

from pyro_manifold.diagnostics.plots.axes import COLOURS, axes_for

_LEAST_PROBABILITY = 0.01
_LINEAR = 3.0  # nats; a factor of 20 between two models
_TICKS = (0, 1, 2, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


def plot_evidence(table: Any, ax: Any = None) -> Any:
    """Plot how far the log evidence of each model is below that of the best, with twice the standard error.

    The scale is linear down to 3 nats below the best model and logarithmic beyond, so that differences
    between the plausible models remain visible. Probabilities of 0.01 and above are written at the points.

    Args:
        table: the result of `pyro_manifold.infer.compare_evidence`; rows whose names are numbers, such as ranks, are
            joined by a line.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: without matplotlib.
        ValueError: for a table without these columns.

    Examples:
        >>> import matplotlib, pandas
        >>> matplotlib.use("Agg")
        >>> columns = {"difference": [-20.0, 0.0, -1.0], "dse": [0.5, 0.0, 0.3], "probability": [0.0, 0.73, 0.27]}
        >>> ax = plot_evidence(pandas.DataFrame(columns, index=pandas.Index([1, 2, 3], name="rank")))
        >>> ax.get_xlabel()
        'rank'
    """
    wanted = {"difference", "dse", "probability"}
    if not wanted <= set(getattr(table, "columns", ())):
        raise ValueError(
            "plot_evidence: table has no columns difference, dse and probability, expected a table of "
            "pyro_manifold.infer.compare_evidence."
        )
    ax = axes_for(ax, "plot_evidence", (5, 3.2))
    numbers = all(isinstance(name, int | float) for name in table.index.tolist())
    places = table.index.tolist() if numbers else list(range(len(table)))
    best = table.difference.argmax()  # NaN, of a model that failed, is no maximum
    ax.axhline(0, color="0.85", lw=1, zorder=0)
    ax.plot(places, table.difference, "-" if numbers else "", color="0.75", lw=1, zorder=1)
    for place, (_, row), k in zip(places, table.iterrows(), range(len(table)), strict=True):
        colour = COLOURS[1] if k == best else COLOURS[0]
        # A single run has no standard error.
        ax.errorbar(
            place, row.difference, 2 * row.dse if row.dse == row.dse else 0, fmt="o", ms=5, color=colour, capsize=3
        )
        if row.probability >= _LEAST_PROBABILITY:
            label = "> 0.99" if row.probability > 1 - _LEAST_PROBABILITY else f"{row.probability:.2f}"
            ax.annotate(
                label,
                (place, max(row.difference + 2 * row.dse, row.difference)),
                (0, 5),
                textcoords="offset points",
                ha="center",
                color=colour,
            )
    _scale(
        ax,
        float((table.difference - 2 * table.dse.fillna(0)).min()),
        float((table.difference + 2 * table.dse.fillna(0)).max()),
    )
    note = "numbers: probability of the model"
    if ax.get_ylim()[0] < -_LINEAR:
        ax.axhline(-_LINEAR, color="0.85", lw=1, ls=":", zorder=0)
        note += f"\nscale: logarithmic below −{_LINEAR:g}"
    ax.text(0.99, 0.03, note, transform=ax.transAxes, ha="right", color="0.4", fontsize="small")
    ax.set_xticks(places, [str(name) for name in table.index.tolist()])
    ax.set(xlabel=table.index.name or "model", ylabel="log evidence below the best,\n± 2 standard errors (nats)")
    ax.margins(x=0.08)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _scale(ax: Any, lowest: float, highest: float) -> None:
    """Scale the vertical axis so that it ends beyond the lowest and the highest end of an interval."""
    ax.set_yscale("symlog", linthresh=_LINEAR, linscale=1.5)
    ticks = [tick for tick in _TICKS if tick <= -lowest] or [0]
    ax.set_yticks([-tick for tick in ticks], [f"−{tick:,}" if tick else "0" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylim(min(1.6 * lowest, -1.0), max(highest, 0.0) + 1.0)
