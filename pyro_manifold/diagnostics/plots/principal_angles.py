"""Traces of the largest principal angle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_reference
from pyro_manifold.diagnostics.plots.axes import COLOURS, as_tensor, axes_for, check_one_site, legend_below
from pyro_manifold.diagnostics.subspaces import orthonormal_basis, principal_angles, subspace_summary


def plot_principal_angles(draws: Any, reference: Tensor | None = None, ax: Any = None) -> Any:
    r"""Plot the largest angle between the span of each draw's columns and that of a reference, a line for each chain.

    The angle does not depend on signs, order or rotations of columns. A chain that is in another mode, or has not
    converged, is above the others. In high dimension no draw is near the mean: the level is the posterior spread.

    Args:
        draws: ``(chains, draws, n, p)``, one site outside plates, orthonormal or not; a tensor, an array or
            a variable of an InferenceData.
        reference: ``(n, p)``; None takes the mean subspace of `subspace_summary`.
        ax: axes to draw on; None makes new ones.

    Returns:
        The matplotlib axes, angles in degrees.

    Raises:
        ImportError: without matplotlib.
        TypeError, ValueError: as `principal_angles`; for draws of a site in a plate.

    Examples:
        >>> import matplotlib, torch
        >>> matplotlib.use("Agg")
        >>> ax = plot_principal_angles(torch.eye(4, 2).expand(2, 10, 4, 2))
        >>> len(ax.lines)
        2
    """
    owner = "plot_principal_angles"
    draws = as_tensor(draws)
    check_draws(draws, owner)
    check_one_site(draws, owner)
    basis = orthonormal_basis(draws, "draws", owner)
    if reference is None:
        angles, target = subspace_summary(basis).angles, "the mean subspace"
    else:
        other = orthonormal_basis(check_reference(reference, draws, owner), "reference", owner)
        angles, target = principal_angles(basis, other), "the reference"
    ax = axes_for(ax, owner, size=(6.4, 2.8))
    for chain, values in enumerate(torch.rad2deg(angles[..., -1]).cpu()):
        ax.plot(values.numpy(), color=COLOURS[chain % len(COLOURS)], lw=0.9, alpha=0.8, label=f"chain {chain}")
    ax.set(xlabel="draw", ylim=(0, None), xlim=(0, max(1, draws.shape[1] - 1)))
    ax.set_ylabel(f"{'' if draws.shape[-1] == 1 else 'largest '}angle to\n{target} (°)")
    ax.spines[["top", "right"]].set_visible(False)
    if 1 < len(draws) <= len(COLOURS):
        legend_below(ax, 32, ncols=len(draws), fontsize="small")
    return ax
