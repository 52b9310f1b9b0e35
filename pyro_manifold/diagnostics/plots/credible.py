"""Credible intervals and ellipses of draws."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics.installed_arviz import default_probability
from pyro_manifold.diagnostics.plots.axes import legend_below


class CredibleEllipse(NamedTuple):
    r"""Ellipses $\{c + A z : |z| \le 1\}$ in the plane, one for each batch element.

    Attributes:
        centre: c, the mean of the draws, ``(..., 2)``.
        semi_axes: A, whose columns are the semi-axes, orthogonal to each other and the longer one last,
            ``(..., 2, 2)``.
    """

    centre: Tensor
    semi_axes: Tensor


def credible_mass(prob: Any, owner: str) -> float:
    """Return the probability of intervals and ellipses; None is that of the installed ArviZ."""
    if prob is None:
        return default_probability()
    if not isinstance(prob, Real) or not 0 < float(prob) < 1:
        raise ValueError(f"{owner}: prob is {prob!r}, expected a number between 0 and 1, such as 0.9.")
    return float(prob)


def in_percent(probability: float) -> str:
    """Return a probability as it is written on figures, such as ``"89 %"``."""
    return f"{100 * probability:.4g} %"


def shortest_interval(values: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the shortest interval that contains a share of the draws, as `arviz.hdi` does.

    It is the interval of all plots and tables of this package, as in Pyro's summary. ArviZ 1 has intervals between
    quantiles by default.

    Args:
        values: ``(draws, ...)``, at least two draws.
        probability: share of the draws inside.
    """
    ordered = values.sort(0).values
    inside = min(math.floor(probability * len(ordered)), len(ordered) - 1)
    first = (ordered[inside:] - ordered[: len(ordered) - inside]).argmin(0, keepdim=True)
    return ordered.gather(0, first)[0], ordered.gather(0, first + inside)[0]


def smallest_radius(distances: Tensor, probability: float) -> Tensor:
    """Return the smallest radius within which a share of the distances ``(draws, ...)`` lies."""
    return distances.kthvalue(max(1, math.ceil(probability * len(distances) - 1e-9)), dim=0).values


def credible_ellipses(points: Tensor, probability: float) -> CredibleEllipse:
    """Return the ellipses of the draws' covariances, scaled so that they contain a share of the draws.

    For normal draws they are the regions of highest density; for others the share is right all the same.

    Args:
        points: ``(draws, ..., 2)``.
        probability: share of the draws inside.
    """
    centre = points.mean(0)
    residuals = points - centre
    covariance = torch.einsum("s...i,s...j->...ij", residuals, residuals) / len(points)
    variances, directions = torch.linalg.eigh(covariance)
    # Draws that are all equal, or on one line, have an ellipse without width.
    smallest = torch.finfo(points.dtype).tiny
    deviations = variances.clamp(min=smallest).sqrt()
    standardised = torch.einsum("s...i,...ij->s...j", residuals, directions) / deviations
    radius = smallest_radius(standardised.norm(dim=-1), probability)
    return CredibleEllipse(centre, directions * (deviations * radius.unsqueeze(-1)).unsqueeze(-2))


def draw_ellipses(ax: Any, ellipses: CredibleEllipse, **style: Any) -> None:
    """Add ellipses ``(count, 2)`` to axes as patches."""
    from matplotlib.patches import Ellipse

    lengths = 2 * ellipses.semi_axes.norm(dim=-2)
    along = ellipses.semi_axes[..., -1]
    angles = torch.rad2deg(torch.atan2(along[..., 1], along[..., 0]))
    for centre, (height, width), angle in zip(ellipses.centre.tolist(), lengths.tolist(), angles.tolist(), strict=True):
        ax.add_patch(Ellipse(centre, width, height, angle=angle, **style))
    ax.autoscale_view()


def legend_of_ellipses(ax: Any, probability: float, groups: list[str]) -> None:
    """Add a legend below the axes: the share of the draws in each ellipse, and the groups if there are any."""
    title = f"each ellipse: {in_percent(probability)} of the draws"
    options: dict[str, Any] = {} if groups else {"handles": []}
    legend_below(
        ax, 32, title=title, title_fontsize="small", ncols=min(max(len(groups), 1), 4), handletextpad=0.1, **options
    )
