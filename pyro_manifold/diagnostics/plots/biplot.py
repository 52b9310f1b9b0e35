"""Loadings and scores in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws
from pyro_manifold.diagnostics.plots.axes import (
    COLOURS,
    as_tensor,
    axes_for,
    check_one_site,
    groups_of,
    halo,
    ink,
    labels_of,
    names_of,
    two_columns,
)
from pyro_manifold.diagnostics.plots.credible import (
    credible_ellipses,
    credible_mass,
    draw_ellipses,
    legend_of_ellipses,
)


def plot_biplot(
    loadings: Any,
    scores: Any,
    row_names: Sequence[str] | None = None,
    groups: Sequence[Any] | None = None,
    columns: Sequence[int] = (0, 1),
    prob: float | None = None,
    ax: Any = None,
) -> Any:
    r"""Plot scores as points and loadings as arrows, with credible ellipses of both (Gabriel 1971).

    A point is the posterior mean of the scores of one observation, an arrow that of the loadings of one variable. The
    ellipse has the shape of the covariance of the draws and contains a share ``prob`` of them, as the
    legend states. All arrows are
    longer than the loadings by one factor, which the axes above and to the right of the panel undo. Align the draws
    first if signs, order or rotation of the columns are unknown.

    Args:
        loadings: ``(chains, draws, n, p)`` with p ≥ 2, one site outside plates; a tensor, an array or a variable of an
            InferenceData.
        scores: ``(chains, draws, observations, p)``, of the same draws.
        row_names: n names of the variables; None takes those of an InferenceData, or numbers the variables.
        groups: the group of each observation, which has a colour and a place in the legend; None for one colour.
        columns: indices of the two columns that are shown.
        prob: share of the draws in each ellipse; None is that of ArviZ's intervals, ``rcParams["stats.ci_prob"]``.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes, of equal scales, so that the angles between arrows are those between loadings.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite, not of such shapes or with fewer than two columns, for
            names or groups of another number, columns that there are not, and a probability outside (0, 1).

    Source: Gabriel, K. R. (1971). The biplot graphic display of matrices with application to principal component
    analysis. Biometrika 58, 453–467.

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> loadings = torch.eye(3, 2) + 0.1 * torch.randn(2, 50, 3, 2)
        >>> scores = torch.tensor([[1.0, 2.0], [-2.0, 0.0]]) + 0.1 * torch.randn(2, 50, 2, 2)
        >>> ax = plot_biplot(loadings, scores, row_names=["a", "b", "c"])
        >>> len(ax.patches)  # an ellipse for each of 2 observations and 3 variables
        5
    """
    owner = "plot_biplot"
    names, mass = row_names or labels_of(loadings, -2), credible_mass(prob, owner)
    loadings, scores = _pair(as_tensor(loadings), as_tensor(scores), owner)
    shown = two_columns(columns, loadings.shape[-1], owner)
    names = names_of(names, loadings.shape[-2], "row_names", owner)
    members = groups_of(groups, scores.shape[-2], owner)
    ax = axes_for(ax, owner, size=(5.6, 5.6))
    points, arrows = (each[..., shown].detach().flatten(0, 1).cpu().double() for each in (scores, loadings))
    ellipses = credible_ellipses(points, mass)
    for k, (group, rows) in enumerate(members.items()):
        colour = COLOURS[k % len(COLOURS)]
        draw_ellipses(ax, ellipses._replace(centre=ellipses.centre[rows], semi_axes=ellipses.semi_axes[rows]),
                      facecolor=colour, alpha=0.1, linewidth=0)  # fmt: skip
        ax.scatter(*ellipses.centre[rows].T.numpy(), s=9, color=colour, linewidths=0, label=group, zorder=2)
    factor = float(ellipses.centre.norm(dim=-1).max() / arrows.mean(0).norm(dim=-1).max().clamp(min=1e-12)) or 1.0
    tips = credible_ellipses(factor * arrows, mass)
    draw_ellipses(ax, tips, facecolor="none", edgecolor=ink(), linewidth=0.6, alpha=0.35, zorder=2.5)
    for tip in tips.centre.tolist():
        ax.annotate(
            "", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": ink(), "lw": 1, "shrinkA": 0, "shrinkB": 0}
        )
    ax.set(xlabel=f"score on column {shown[0] + 1}", ylabel=f"score on column {shown[1] + 1}", aspect="equal")
    ax.margins(0.08)
    for place, axis in (("top", ax.secondary_xaxis), ("right", ax.secondary_yaxis)):
        second = axis(place, functions=(lambda x: x / factor, lambda x: x * factor))
        second.tick_params(colors="0.4", labelsize="small")
    _write_names(ax, tips.centre, names)
    legend_of_ellipses(ax, mass, [] if groups is None else list(members))
    return ax


def _pair(loadings: Tensor, scores: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    """Return loadings and scores of the same draws, or raise an error."""
    for values, name in ((loadings, "loadings"), (scores, "scores")):
        check_draws(values, owner, name)
        check_one_site(values, owner, name)
    if scores.shape[:2] != loadings.shape[:2] or scores.shape[-1] != loadings.shape[-1]:
        raise ValueError(
            f"{owner}: scores has shape {tuple(scores.shape)} and loadings {tuple(loadings.shape)}, expected the same "
            "chains, draws and columns; take both from the same aligned draws."
        )
    if loadings.shape[-1] < 2:
        raise ValueError(f"{owner}: loadings has one column, expected at least two; use plot_loadings.")
    return loadings, scores


def _write_names(ax: Any, tips: Tensor, names: list[str]) -> None:
    """Write names beyond the tips of arrows, within the axes; those that would overlap move up or down."""
    texts = []
    for name, (x, y) in zip(names, tips.tolist(), strict=True):
        length = max((x * x + y * y) ** 0.5, 1e-12)
        text = ax.annotate(
            name, (x, y), (5 * x / length, 5 * y / length), textcoords="offset points", fontsize="small",
            ha="left" if x >= 0 else "right", va="center", color=ink(), zorder=4, path_effects=halo(ax),
        )  # fmt: skip
        texts.append(text)
    _widen(ax, texts)
    taken: list[Any] = []
    for k in tips[:, 1].abs().argsort().tolist():  # those near the horizontal axis stay
        away = 2 if tips[k, 1] >= 0 else -2
        for _ in range(40):
            box = texts[k].get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
            right, up = texts[k].get_position()
            texts[k].set_position((right, up + away))
        taken.append(texts[k].get_window_extent())


def _widen(ax: Any, texts: list[Any]) -> None:
    """Widen the limits of the horizontal axis so that it contains all texts."""
    for _ in range(10):  # where limits are wider, texts are too, in the units of the data
        ax.figure.canvas.draw()  # sizes of texts are known from here on
        left, right = ax.get_xlim()
        ends = [ax.transData.inverted().transform(text.get_window_extent())[:, 0] for text in texts]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        if left <= low and high <= right:
            break
        pad = 0.03 * (right - left)
        ax.set_xlim(min(left, low - pad), max(right, high + pad))
