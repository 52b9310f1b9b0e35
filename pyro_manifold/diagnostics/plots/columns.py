"""Columns of orthonormal matrices on the circle or sphere."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_orthonormal, check_tall
from pyro_manifold.diagnostics.plots.axes import COLOURS, as_tensor, axes_for, check_one_site, legend_below
from pyro_manifold.diagnostics.plots.sphere import circle, sphere
from pyro_manifold.manifolds import Stiefel

_MOST_PROJECTED = 0.1


def plot_columns(draws: Any, ax: Any = None, most_draws: int = 300, *, project: bool = False) -> Any:
    r"""Plot columns of orthonormal matrices on the circle (n = 2) or sphere (n = 3), with an arrow for each mean.

    The arrow is the arithmetic mean
    $E\,x_j$: on the circle or sphere if all draws are equal, short if they are dispersed, and zero if they have
    no mean direction, as when signs are not aligned.

    Args:
        draws: orthonormal matrices, ``(chains, draws, n, p)`` with n = 2 or 3, one site outside plates; a
            tensor, an array or a variable of an InferenceData.
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
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> ax = plot_columns(torch.eye(3, 2).expand(1, 10, 3, 2))
        >>> ax.name
        '3d'
    """
    draws = as_tensor(draws)
    check_draws(draws, "plot_columns")
    check_one_site(draws, "plot_columns")
    draws = _orthonormal(draws, project)
    n, p = draws.shape[-2:]
    if n not in (2, 3):
        raise ValueError(
            f"plot_columns: draws has shape {tuple(draws.shape)}, but only columns of length 2 or 3 can be drawn; "
            "use plot_loadings or plot_principal_angles."
        )
    ax = axes_for(ax, "plot_columns", three_dimensional=n == 3, size=(4.2, 4.2))
    columns = draws.detach().flatten(0, 1).cpu().double()
    if most_draws < 1:
        raise ValueError(f"plot_columns: most_draws={most_draws}, expected at least 1.")
    shown = columns[:: max(1, -(-len(columns) // most_draws))]
    (circle if n == 2 else sphere)(ax)
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
    legend = legend_below(ax, 32 if n == 2 else 20, ncols=p, handletextpad=0.1)
    for handle in legend.legend_handles:
        handle.set(alpha=1.0, sizes=[25])
    return ax


def _orthonormal(draws: Any, project: bool) -> Tensor:
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
