"""Plots of draws of orthonormal matrices and loadings, beside those of ArviZ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_orthonormal, check_reference, check_tall
from pyro_manifold.diagnostics.subspaces import orthonormal_basis, principal_angles, subspace_summary
from pyro_manifold.manifolds import Stiefel

# Okabe & Ito 2008: distinguishable for all common forms of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_CERTAIN = 0.95
_MOST_CELLS_WITH_TEXT = 120
_MOST_PROJECTED = 0.1
_LEAST_PROBABILITY = 0.01


def plot_columns(draws: Tensor, ax: Any = None, most_draws: int = 300, *, project: bool = False) -> Any:
    r"""Plot columns of orthonormal matrices on the circle (n = 2) or sphere (n = 3), with an arrow for each mean.

    The arrow is the arithmetic mean
    $E\,x_j$: on the circle or sphere if all draws are equal, short if they are dispersed, and zero if they have
    no mean direction, as when signs are not aligned.

    Args:
        draws: orthonormal matrices, ``(chains, draws, n, p)`` with n = 2 or 3, one site outside plates.
        ax: axes to draw on, three-dimensional for n = 3; None makes new ones.
        most_draws: largest number of draws to show, evenly spaced; the means are those of all.
        project: replace draws by the nearest orthonormal matrices first, for draws that are orthonormal only up to
            about 1e-4, such as numbers read from a file with few digits. A distance above 0.1 is an error all the same.

    Returns:
        The matplotlib axes, named after the rows, with the legend below them.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not orthonormal matrices of such a shape, or axes of the other
            dimension.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> ax = plot_columns(torch.eye(3, 2).expand(1, 10, 3, 2))
        >>> ax.name
        '3d'
    """
    check_draws(draws, "plot_columns")
    _check_one_site(draws, "plot_columns")
    draws = _orthonormal(draws, project)
    n, p = draws.shape[-2:]
    if n not in (2, 3):
        raise ValueError(
            f"plot_columns: draws has shape {tuple(draws.shape)}, but only columns of length 2 or 3 can be drawn; "
            "use plot_loadings or plot_principal_angles."
        )
    ax = _axes(ax, "plot_columns", three_dimensional=n == 3, size=(4.2, 4.2))
    columns = draws.detach().flatten(0, 1).cpu().double()
    if most_draws < 1:
        raise ValueError(f"plot_columns: most_draws={most_draws}, expected at least 1.")
    shown = columns[:: max(1, -(-len(columns) // most_draws))]
    (_circle if n == 2 else _sphere)(ax)
    # Points of a narrow cloud hide each other; transparent ones show where it is dense. On a sphere those at the back
    # are faded already.
    opacity = 0.35 if n == 2 else 0.75
    for j in range(p):
        colour, mean = COLOURS[j % len(COLOURS)], columns[..., j].mean(0)
        ax.scatter(*shown[..., j].T.numpy(), s=9, color=colour, alpha=opacity, linewidths=0, label=f"column {j + 1}")
        if n == 2:
            ax.annotate("", mean.tolist(), (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2})
        else:
            ax.quiver(0, 0, 0, *mean.tolist(), color=colour, lw=2, arrow_length_ratio=0.12)
    legend = _legend_below(ax, 32 if n == 2 else 20, ncols=p, handletextpad=0.1)
    for handle in legend.legend_handles:
        handle.set(alpha=1.0, sizes=[25])
    return ax


def plot_principal_angles(draws: Tensor, reference: Tensor | None = None, ax: Any = None) -> Any:
    r"""Plot the largest angle between the span of each draw's columns and that of a reference, a line for each chain.

    The angle does not depend on signs, order or rotations of columns. A chain that is in another mode, or has not
    converged, is above the others. In high dimension no draw is near the mean: the level is the posterior spread.

    Args:
        draws: ``(chains, draws, n, p)``, one site outside plates, orthonormal or not.
        reference: ``(n, p)``; None takes the mean subspace of `subspace_summary`.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes, angles in degrees.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: as `principal_angles`; for draws of a site in a plate.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> ax = plot_principal_angles(torch.eye(4, 2).expand(2, 10, 4, 2))
        >>> len(ax.lines)
        2
    """
    owner = "plot_principal_angles"
    check_draws(draws, owner)
    _check_one_site(draws, owner)
    basis = orthonormal_basis(draws, "draws", owner)
    if reference is None:
        angles, target = subspace_summary(basis).angles, "the mean subspace"
    else:
        other = orthonormal_basis(check_reference(reference, draws, owner), "reference", owner)
        angles, target = principal_angles(basis, other), "the reference"
    ax = _axes(ax, owner, size=(6.4, 2.8))
    for chain, values in enumerate(torch.rad2deg(angles[..., -1]).cpu()):
        ax.plot(values.numpy(), color=COLOURS[chain % len(COLOURS)], lw=0.9, alpha=0.8, label=f"chain {chain}")
    ax.set(xlabel="draw", ylim=(0, None), xlim=(0, max(1, draws.shape[1] - 1)))
    ax.set_ylabel(f"{'' if draws.shape[-1] == 1 else 'largest '}angle to\n{target} (°)")
    ax.spines[["top", "right"]].set_visible(False)
    if 1 < len(draws) <= len(COLOURS):
        _legend_below(ax, 32, ncols=len(draws), fontsize="small")
    return ax


def plot_loadings(
    draws: Tensor,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    r"""Plot a heat map of posterior means of loadings, with their uncertainty.

    The colour is the mean, and in small tables the text is mean ± standard deviation. Where the sign of an entry has a
    posterior probability below 95 %, the text is grey; in larger tables, which have no text, a dot marks these cells.
    Align the draws first if signs, order or rotation of columns are unknown.

    Args:
        draws: ``(chains, draws, n, p)``, one site outside plates.
        row_names: n names; None numbers the rows.
        column_names: p names; None numbers the columns.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite or not of such a shape, or names of another number.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> ax = plot_loadings(torch.eye(3, 2).expand(2, 10, 3, 2), row_names=["a", "b", "c"])
        >>> " ".join(label.get_text() for label in ax.get_yticklabels())
        'a b c'
    """
    owner = "plot_loadings"
    check_draws(draws, owner)
    _check_one_site(draws, owner)
    n, p = draws.shape[-2:]
    rows = _names(row_names, n, "row_names", owner)
    columns = _names(column_names, p, "column_names", owner)
    # Space in inches for names, cells and colour bar.
    width = 1.4 + 0.085 * max(map(len, rows)) + 1.05 * min(p, 10)
    ax = _axes(ax, owner, size=(width, 0.8 + 0.3 * min(n, 30)))
    values = draws.detach().flatten(0, 1).cpu().double()
    mean = values.mean(0)
    largest = float(mean.abs().max()) or 1.0
    image = ax.imshow(mean.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    ax.set_xticks(range(p), columns)
    ax.set_yticks(*_thinned(rows))
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


def _orthonormal(draws: Tensor, project: bool) -> Tensor:
    """Return the draws, or the orthonormal matrices nearest to them."""
    if not project:
        check_orthonormal(draws, "draws", "plot_columns", remedy="use project=True if only rounding has gathered.")
        return draws
    check_tall(draws, "draws", "plot_columns")
    error = float(Stiefel().membership_error(draws.detach()).max())
    if error > _MOST_PROJECTED:
        raise ValueError(
            f"plot_columns: project=True is for draws whose columns are nearly orthonormal, but |XᵀX − I| reaches "
            f"{error:.1e}; draw loadings of other lengths with plot_loadings."
        )
    return Stiefel().projection(draws.detach())


def _legend_below(ax: Any, points: float, **options: Any) -> Any:
    """Add a legend so many points under the axes, below their names; a title has its place above the axes."""
    from matplotlib.transforms import ScaledTranslation

    place = ax.transAxes + ScaledTranslation(0, -points / 72, ax.figure.dpi_scale_trans)
    return ax.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, borderaxespad=0, **options
    )


def plot_evidence(table: Any, ax: Any = None) -> Any:
    """Plot the log evidence of several models with twice its standard error, and the non-negligible probabilities.

    Args:
        table: the result of `pyro_manifold.infer.compare_evidence`; rows whose names are numbers, such as ranks, are
            joined by a line.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: without matplotlib.
        ValueError: for a table without these columns.
    """
    wanted = {"log_evidence", "se", "probability"}
    if not wanted <= set(getattr(table, "columns", ())):
        raise ValueError("plot_evidence: table is what pyro_manifold.infer.compare_evidence gives.")
    ax = _axes(ax, "plot_evidence", (5, 3.2))
    numbers = all(isinstance(name, int | float) for name in table.index.tolist())
    places = table.index.tolist() if numbers else list(range(len(table)))
    best = table.log_evidence.argmax()  # NaN, of a model that failed, is no maximum
    ax.plot(places, table.log_evidence, "-" if numbers else "", color="0.75", lw=1, zorder=1)
    for place, (_, row), k in zip(places, table.iterrows(), range(len(table)), strict=True):
        colour = COLOURS[1] if k == best else COLOURS[0]
        # A single run has no standard error.
        ax.errorbar(place, row.log_evidence, 2 * row.se if row.se == row.se else 0, fmt="o", color=colour, capsize=3)
        if row.probability >= _LEAST_PROBABILITY:
            label = "> 0.99" if row.probability > 1 - _LEAST_PROBABILITY else f"{row.probability:.2f}"
            ax.annotate(label, (place, row.log_evidence), (0, 7), textcoords="offset points", ha="center", color=colour)
    note = "numbers: probability of the model"
    ax.text(0.99, 0.03, note, transform=ax.transAxes, ha="right", color="0.4", fontsize="small")
    ax.set_xticks(places, [str(name) for name in table.index.tolist()])
    ax.set(xlabel=table.index.name or "model", ylabel="log evidence, ± 2 standard errors")
    ax.margins(x=0.08, y=0.18)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _circle(ax: Any) -> None:
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    ax.plot(angle.cos().numpy(), angle.sin().numpy(), color="0.8", lw=1, zorder=0)
    ax.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlabel="row 1", ylabel="row 2")
    ax.spines[["top", "right"]].set_visible(False)


def _sphere(ax: Any) -> None:
    """Draw a faint sphere; its lines of latitude and longitude show on which side a point is."""
    around = torch.linspace(0, 2 * torch.pi, 25, dtype=torch.float64)
    down = torch.linspace(0, torch.pi, 13, dtype=torch.float64).unsqueeze(-1)
    x, y, z = down.sin() * around.cos(), down.sin() * around.sin(), down.cos().expand(-1, 25)
    ax.plot_wireframe(x.numpy(), y.numpy(), z.numpy(), color="0.88", lw=0.5, zorder=0)
    limits = (-1.15, 1.15)  # beyond the last ticks, so that those of two axes do not meet in a corner
    ax.set(xlim=limits, ylim=limits, zlim=limits, xlabel="row 1", ylabel="row 2", zlabel="row 3")
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
    ax.set_box_aspect((1, 1, 1), zoom=1.1)
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.pane.set_visible(False)
        axis.labelpad = -4
    ax.tick_params(pad=-1, labelsize="small")


def _axes(ax: Any, owner: str, size: tuple[float, float], three_dimensional: bool = False) -> Any:
    """Return the given axes if they fit, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"{owner}: matplotlib is not installed; pip install matplotlib.") from error
    if ax is None:
        projection = {"projection": "3d"} if three_dimensional else {}
        return plt.subplots(figsize=size, subplot_kw=projection, layout="tight")[1]
    if (getattr(ax, "name", None) == "3d") != three_dimensional:
        wanted = 'plt.subplots(subplot_kw={"projection": "3d"})' if three_dimensional else "plt.subplots()"
        raise ValueError(f"{owner}: ax has the wrong number of dimensions for these draws; make it with {wanted}.")
    return ax


def _check_one_site(draws: Tensor, owner: str) -> None:
    if draws.dim() != 4:
        raise ValueError(
            f"{owner}: draws has shape {tuple(draws.shape)}, expected (chains, draws, n, p); plot the elements of a "
            "plate one at a time, draws[:, :, k]."
        )


def _names(names: Sequence[str] | None, count: int, name: str, owner: str) -> list[str]:
    if names is None:
        return [str(k + 1) for k in range(count)]
    if isinstance(names, str) or len(names) != count:
        raise ValueError(f"{owner}: {name} is {names!r}, expected a list of {count} names.")
    return [str(each) for each in names]


def _thinned(names: list[str]) -> tuple[list[int], list[str]]:
    """Return positions and names of at most 40 tick labels: more of them overlap."""
    places = list(range(0, len(names), -(-len(names) // 40)))
    return places, [names[k] for k in places]
