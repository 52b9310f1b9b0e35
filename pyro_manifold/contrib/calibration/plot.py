"""Distribution functions of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_manifold.diagnostics.plots import COLOURS, axes_for, legend_below


def draw_ranks(
    shares: Mapping[str, np.ndarray[Any, Any]],
    band: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    labelled: Sequence[str],
    ax: Any = None,
) -> Any:
    """Draw distribution functions of ranks minus the diagonal, with a band; the axes are returned.

    Args:
        shares: ``{quantity: (edges,)}``, the share of ranks below each inner edge of equal bins.
        band: lower and upper limits of these shares.
        labelled: quantities in the order in which they get one of the colours and a label, as far as there are colours.
        ax: axes to draw on; None makes new ones.
    """
    ax = axes_for(ax, "Calibration.plot", (5, 3.4))
    inner = np.arange(1, len(band[0]) + 1) / (len(band[0]) + 1)
    edges = np.concatenate([[0.0], inner, [1.0]])

    def with_ends(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([[0.0], values - inner, [0.0]])

    ax.fill_between(edges, with_ends(band[0]), with_ends(band[1]), color="0.88", linewidth=0)
    ax.axhline(0, color="0.6", lw=0.8)
    colours = dict(zip(labelled, COLOURS, strict=False))
    for name in [*(name for name in shares if name not in colours), *colours]:  # those with a colour on top
        colour = colours.get(name, "0.6")
        label = name if name in colours else None
        ax.plot(edges, with_ends(shares[name]), color=colour, lw=1.4 if label else 0.7, label=label)
    ax.set(xlabel="rank / draws", ylabel="distribution function\nof ranks − diagonal", xlim=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
    legend_below(ax, 34, ncols=min(4, len(colours)), fontsize="small")
    return ax
