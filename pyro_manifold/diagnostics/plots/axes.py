"""Axes, legends, names and checks that all plots share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Okabe & Ito 2008: distinguishable for all common forms of colour vision; grey, for light and dark, in place of black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")


def axes_for(ax: Any, owner: str, size: tuple[float, float]) -> Any:
    """Return the given axes if they have two dimensions, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"{owner}: matplotlib is not installed; pip install matplotlib.") from error
    if ax is None:
        return plt.subplots(figsize=size, layout="tight")[1]
    if getattr(ax, "name", None) == "3d":
        raise ValueError(f"{owner}: ax has three dimensions, expected two; make it with plt.subplots().")
    return ax


def ink() -> Any:
    """Return the colour of text in the style in use, which is light on dark axes."""
    from matplotlib import rcParams

    return rcParams["text.color"]


def halo(ax: Any) -> list[Any]:
    """Return path effects that keep text legible over points and lines: an outline in the colour of the axes."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground=ax.get_facecolor())]


def legend_below(ax: Any, points: float, **options: Any) -> Any:
    """Add a legend so many points under the axes, below their names; a title has its place above the axes."""
    from matplotlib.transforms import ScaledTranslation

    place = ax.transAxes + ScaledTranslation(0, -points / 72, ax.figure.dpi_scale_trans)
    return ax.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, borderaxespad=0, **options
    )


def check_one_site(draws: Tensor, owner: str, name: str = "draws") -> None:
    if draws.dim() != 4:
        raise ValueError(
            f"{owner}: {name} has shape {tuple(draws.shape)}, expected (chains, draws, n, p); plot the elements of a "
            f"plate one at a time, {name}[:, :, k]."
        )


def as_tensor(values: Any) -> Any:
    """Return NumPy arrays and xarray's, such as ``idata.posterior["loadings"]``, as tensors; all else as it is."""
    if isinstance(values, Tensor) or not hasattr(values, "__array__"):
        return values
    return torch.as_tensor(np.array(values))


def labels_of(values: Any, dimension: int) -> list[str] | None:
    """Return the labels along a dimension of a DataArray, such as those of an InferenceData; None if it has none."""
    names = getattr(values, "dims", ())
    if not names or not -len(names) <= dimension < len(names) or names[dimension] not in values.coords:
        return None
    return [str(label) for label in values.coords[names[dimension]].values]


def groups_of(groups: Any, count: int, owner: str) -> dict[str, list[int]]:
    """Return the indices of each group in the order in which the groups appear; one group without a name if None."""
    if groups is None:
        return {"": list(range(count))}
    names = groups.tolist() if hasattr(groups, "tolist") else groups
    members: dict[str, list[int]] = {}
    for index, name in enumerate(names_of(names, count, "groups", owner)):
        members.setdefault(name, []).append(index)
    return members


def two_columns(columns: Any, count: int, owner: str) -> list[int]:
    """Return the indices of two different columns out of ``count``, or raise an error."""
    chosen = list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else []
    if len(chosen) != 2 or chosen[0] == chosen[1] or any(c not in range(count) for c in chosen):
        raise ValueError(
            f"{owner}: columns is {columns!r}, expected two different indices from 0 to {count - 1}, such as (0, 1)."
        )
    return [int(c) for c in chosen]


def names_of(names: Sequence[str] | None, count: int, name: str, owner: str) -> list[str]:
    if names is None:
        return [str(k + 1) for k in range(count)]
    if isinstance(names, str) or len(names) != count:
        raise ValueError(f"{owner}: {name} is {names!r}, expected a list of {count} names.")
    return [str(each) for each in names]


def thinned(names: list[str]) -> tuple[list[int], list[str]]:
    """Return positions and names of at most 40 tick labels: more of them overlap."""
    places = list(range(0, len(names), -(-len(names) // 40)))
    return places, [names[k] for k in places]
