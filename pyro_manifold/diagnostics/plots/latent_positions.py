"""Latent positions of the nodes of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws
from pyro_manifold.diagnostics.plots.axes import (
    COLOURS,
    as_tensor,
    axes_for,
    check_one_site,
    groups_of,
    halo,
    names_of,
    two_columns,
)
from pyro_manifold.diagnostics.plots.credible import (
    credible_ellipses,
    credible_mass,
    draw_ellipses,
    legend_of_ellipses,
)
from pyro_manifold.diagnostics.renamed import renamed_argument


@renamed_argument("hdi_prob", "prob")
def plot_latent_positions(
    positions: Any,
    adjacency: Any = None,
    row_names: Sequence[str] | None = None,
    groups: Sequence[Any] | None = None,
    columns: Sequence[int] = (0, 1),
    prob: float | None = None,
    ax: Any = None,
) -> Any:
    r"""Plot posterior mean positions of the nodes of a network with credible ellipses, over the links between them.

    The ellipse of a node has the shape of the covariance of its draws and contains a share ``prob`` of them, as the
    legend states. Align
    the draws first: latent spaces are identified up to rotations at best (`align_rotations`), eigenmodels up to signs
    and order (`align_signs_and_permutations`).

    Args:
        positions: ``(chains, draws, nodes, p)`` with p ≥ 2, one site outside plates; a tensor, an array or a variable
            of an InferenceData.
        adjacency: ``(nodes, nodes)``; nodes i and j are joined by a line where entry i, j or j, i is not 0. None
            draws no lines.
        row_names: names of the nodes, written next to them on the side without links; None writes none, nor does an
            empty name.
        groups: the group of each node, which has a colour and a place in the legend; None for one colour.
        columns: indices of the two columns that are shown.
        prob: share of the draws in each ellipse; None is that of ArviZ's intervals, ``rcParams["stats.ci_prob"]``.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes, of equal scales.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite, not of such a shape or with fewer than two columns, for an
            adjacency matrix, names or groups of another size, columns that there are not, and a probability outside
            (0, 1).

    Source: Hoff, P. D., Raftery, A. E. and Handcock, M. S. (2002). Latent space approaches to social network analysis.
    Journal of the American Statistical Association 97, 1090–1098.

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> triangle = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
        >>> adjacency = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
        >>> ax = plot_latent_positions(triangle + 0.1 * torch.randn(2, 50, 3, 2), adjacency)
        >>> len(ax.patches), len(ax.collections[0].get_segments())
        (3, 2)
    """
    owner = "plot_latent_positions"
    mass = credible_mass(prob, owner)
    draws = as_tensor(positions)
    check_draws(draws, owner, "positions")
    check_one_site(draws, owner, "positions")
    nodes, p = draws.shape[-2:]
    if p < 2:
        raise ValueError(f"{owner}: positions has one column, expected at least two; use arviz.plot_forest.")
    shown = two_columns(columns, p, owner)
    names = [] if row_names is None else names_of(row_names, nodes, "row_names", owner)
    members = groups_of(groups, nodes, owner)
    links = _links(as_tensor(adjacency), nodes, owner)
    ax = axes_for(ax, owner, size=(5.6, 5.6))
    ellipses = credible_ellipses(draws[..., shown].detach().flatten(0, 1).cpu().double(), mass)
    if len(links):
        from matplotlib.collections import LineCollection

        ax.add_collection(LineCollection(ellipses.centre[links].tolist(), colors="0.55", linewidths=0.6, zorder=1.5))
    for k, (group, rows) in enumerate(members.items()):
        colour = COLOURS[k % len(COLOURS)]
        mine = ellipses._replace(centre=ellipses.centre[rows], semi_axes=ellipses.semi_axes[rows])
        draw_ellipses(ax, mine, facecolor=(colour, 0.04), edgecolor=(colour, 0.35), linewidth=0.7)
        ax.scatter(*ellipses.centre[rows].T.numpy(), s=16, color=colour, linewidths=0, label=group, zorder=2)
    for node, name in enumerate(names):
        if name:
            _write(ax, name, ellipses.centre[node], _free_side(ellipses.centre, links, node))
    ax.set(xlabel=f"position, column {shown[0] + 1}", ylabel=f"position, column {shown[1] + 1}", aspect="equal")
    ax.spines[["top", "right"]].set_visible(False)
    legend_of_ellipses(ax, mass, [] if groups is None else list(members))
    return ax


def _free_side(centres: Tensor, links: Tensor, node: int) -> Tensor:
    """Return the unit vector from the mean of the nodes to which a node is linked, or of all nodes, to the node."""
    linked = links[(links == node).any(-1)].flatten()
    away = centres[node] - (centres[linked[linked != node]] if len(linked) else centres).mean(0)
    return away / away.norm() if bool(away.norm() > 0) else torch.tensor([1.0, 0.0]).to(away)


def _write(ax: Any, name: str, place: Tensor, direction: Tensor) -> None:
    """Write a name so many points from its place in a direction, without covering the place."""
    horizontal, vertical = ((0 if abs(part) < 0.4 else 1 if part > 0 else -1) for part in direction.tolist())
    text = ax.annotate(
        name,
        place.tolist(),
        (5 * direction).tolist(),
        textcoords="offset points",
        ha=("center", "left", "right")[horizontal],
        va=("center", "bottom", "top")[vertical],
        fontsize="small",
        zorder=3,
    )
    text.set_path_effects(halo())


def _links(adjacency: Any, nodes: int, owner: str) -> Tensor:
    """Return the pairs of nodes that are joined, ``(links, 2)``, or raise an error."""
    if adjacency is None:
        return torch.empty(0, 2, dtype=torch.long)
    if not isinstance(adjacency, Tensor) or tuple(adjacency.shape) != (nodes, nodes):
        shape = f"has shape {tuple(adjacency.shape)}" if isinstance(adjacency, Tensor) else f"is {adjacency!r}"
        raise ValueError(
            f"{owner}: adjacency {shape}, expected a matrix of shape {(nodes, nodes)}, a row for each node."
        )
    joined = adjacency.cpu() != 0
    return (joined | joined.T).triu(1).nonzero()
