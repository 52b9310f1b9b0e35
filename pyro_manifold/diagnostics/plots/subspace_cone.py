"""The credible cone of a line or plane."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws
from pyro_manifold.diagnostics.plots.axes import COLOURS, as_tensor, axes_for, check_one_site, legend_below
from pyro_manifold.diagnostics.plots.credible import credible_mass, in_percent, smallest_radius
from pyro_manifold.diagnostics.plots.sphere import circle, sphere
from pyro_manifold.diagnostics.renamed import renamed_argument
from pyro_manifold.diagnostics.subspaces import orthonormal_basis, subspace_summary


@renamed_argument("hdi_prob", "prob")
def plot_subspace_cone(draws: Any, prob: float | None = None, ax: Any = None, most_draws: int = 300) -> Any:
    r"""Plot the credible cone of a line in the plane or in space, or of a plane in space.

    The cone is around the mean subspace of `subspace_summary`; its half-angle is the smallest with a share
    ``prob`` of the draws inside, the quantile of the largest principal angle θ to the mean subspace. A plane in
    space is shown by its normal, whose angle to the normal of the mean plane is θ. The draws are points where the line
    or normal meets the circle or sphere, on both sides. Signs, order and rotations of columns do not matter.

    Args:
        draws: ``(chains, draws, n, p)``, one site outside plates, orthonormal or not, with n = 2 and p = 1, or n = 3
            and p = 1 or 2; a tensor, an array or a variable of an InferenceData.
        prob: share of the draws in the cone; None is that of ArviZ's intervals, ``rcParams["stats.ci_prob"]``.
        ax: axes to draw on, three-dimensional for n = 3; None makes new ones.
        most_draws: largest number of draws to show, evenly spaced; the cone is that of all.

    Returns:
        The matplotlib axes, with the share and the half-angle in the legend.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: for draws that are not finite, not of such a shape, or with linearly dependent columns,
            axes of the other dimension, and a probability outside (0, 1).

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> turned = torch.linspace(-0.5, 0.5, 101).deg2rad()
        >>> lines = torch.stack([turned.cos(), turned.sin()], -1).reshape(1, 101, 2, 1)
        >>> ax = plot_subspace_cone(lines, prob=0.8)
        >>> ax.get_legend().get_texts()[-1].get_text()
        '80 % cone: ± 0.4°'
    """
    owner = "plot_subspace_cone"
    mass = credible_mass(prob, owner)
    draws = as_tensor(draws)
    check_draws(draws, owner)
    check_one_site(draws, owner)
    n, p = draws.shape[-2:]
    if (n, p) not in ((2, 1), (3, 1), (3, 2)):
        raise ValueError(
            f"{owner}: draws has shape {tuple(draws.shape)}, but only lines (n = 2 or 3, p = 1) and planes in space "
            "(n = 3, p = 2) have a cone to draw; use plot_principal_angles."
        )
    if most_draws < 1:
        raise ValueError(f"{owner}: most_draws={most_draws}, expected at least 1.")
    basis = orthonormal_basis(draws, "draws", owner).detach().cpu().double()
    summary = subspace_summary(basis)
    angle = float(smallest_radius(summary.angles[..., -1].flatten(), mass))
    directions, axis = _direction(basis.flatten(0, 1)), _direction(summary.mean)
    shown = directions[:: max(1, -(-len(directions) // most_draws))]
    ax = axes_for(ax, owner, three_dimensional=n == 3, size=(4.2, 4.2))
    label = f"{in_percent(mass)} cone: ± {_degrees(angle)}°"
    (_cone_in_the_plane if n == 2 else _cone_in_space)(ax, axis, angle, label)
    if p == 2:
        _disc(ax, axis)
    both = torch.cat([shown, -shown]).T.numpy()
    ax.scatter(*both, s=6, color=COLOURS[0], alpha=0.5, linewidths=0, zorder=2,
               label="normals of draws" if p == 2 else "draws")  # fmt: skip
    ax.plot(*torch.stack([-axis, axis], -1).numpy(), color=COLOURS[1], lw=2, zorder=3,
            label="mean normal" if p == 2 else "mean line")  # fmt: skip
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: "cone" in labels[k])
    options = {"handles": [handles[k] for k in order], "labels": [labels[k] for k in order], "ncols": 2}
    legend_below(ax, 32 if n == 2 else 20, fontsize="small", columnspacing=1.0, **options)
    return ax


def _direction(basis: Tensor) -> Tensor:
    """Return the unit vector of a line, or the normal of a plane in space; ``(..., n, p)`` to ``(..., n)``."""
    return basis[..., 0] if basis.shape[-1] == 1 else torch.linalg.cross(basis[..., 0], basis[..., 1])


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.1f}" if math.degrees(angle) < 9.95 else f"{math.degrees(angle):.0f}"


def _cone_in_the_plane(ax: Any, axis: Tensor, angle: float, label: str) -> None:
    from matplotlib.patches import Wedge

    circle(ax)
    middle, half = math.degrees(math.atan2(*axis.flip(0).tolist())), math.degrees(angle)
    for turn, name in ((0.0, label), (180.0, None)):
        first = middle + turn - half
        ax.add_patch(Wedge((0, 0), 1, first, first + 2 * half, color=COLOURS[0], alpha=0.2, linewidth=0, label=name))


def _cone_in_space(ax: Any, axis: Tensor, angle: float, label: str) -> None:
    """Draw both halves of the cone, from the centre to the sphere."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    sphere(ax)
    ax.computed_zorder = False  # all parts are transparent, and none may hide another
    around = torch.linspace(0, 2 * torch.pi, 61, dtype=axis.dtype).unsqueeze(-1)
    first, second = _across(axis)
    rim = math.cos(angle) * axis + math.sin(angle) * (around.cos() * first + around.sin() * second)
    centre = torch.zeros(60, 3, dtype=axis.dtype)
    triangles = torch.stack([centre, rim[:-1], rim[1:]], 1)
    faces = torch.cat([triangles, -triangles]).numpy()
    ax.add_collection3d(Poly3DCollection(faces, facecolor=COLOURS[0], alpha=0.2, linewidths=0, zorder=1, label=label))
    for side in (rim, -rim):
        ax.plot(*side.T.numpy(), color=COLOURS[0], lw=1, zorder=2)


def _disc(ax: Any, normal: Tensor) -> None:
    """Draw the mean plane within the sphere."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    around = torch.linspace(0, 2 * torch.pi, 61, dtype=normal.dtype).unsqueeze(-1)
    first, second = _across(normal)
    edge = (around.cos() * first + around.sin() * second).numpy()
    ax.add_collection3d(
        Poly3DCollection([edge], facecolor=COLOURS[1], alpha=0.12, linewidths=0, zorder=1, label="mean plane")
    )


def _across(axis: Tensor) -> tuple[Tensor, Tensor]:
    """Return two unit vectors at right angles to each other and to the axis."""
    first = torch.linalg.cross(axis, torch.eye(3, dtype=axis.dtype)[int(axis.abs().argmin())])
    first = first / first.norm()
    return first, torch.linalg.cross(axis, first)
