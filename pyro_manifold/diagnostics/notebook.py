"""Tables of runs for notebooks, in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import Tensor

from pyro_manifold.diagnostics.convergence import convergence
from pyro_manifold.diagnostics.posterior import Posterior

_FEWEST_DRAWS = 4
_LARGEST_R_HAT = 1.01


def in_html(posterior: Posterior | None, title: str) -> str:
    """Return a table with a row for each site: shape, largest R-hat, smallest effective sample size.

    Draws are aligned, as in `MCMC.summary`. An R-hat above 1.01 is bold.

    Args:
        posterior: the draws, or None if there are none yet.
        title: text above the table.

    Examples:
        >>> import torch
        >>> "R-hat" in in_html(Posterior({"x": torch.randn(4, 100)}), "four chains")
        True
    """
    heading = f"<strong>{escape(title)}</strong>"
    if posterior is None:
        return f"<p>{heading}: no draws yet</p>"
    size = f"{posterior.chains} {posterior.unit} of {posterior.length} draws"
    if "diverging" in posterior.statistics:
        size += f", {posterior.divergences} divergences"
    known = posterior.length >= _FEWEST_DRAWS
    aligned = known and posterior.symmetries is not None
    titles = ["site", "shape", *(["largest R-hat", "least bulk ESS"] if known else [])]
    rows = [_row(titles, "th")]
    for name, values in (posterior.aligned() if aligned else posterior).draws.items():
        cells = [escape(name), "×".join(map(str, values.shape[2:])) or "number"]
        rows.append(_row([*cells, *(_measures(values) if known else [])], "td"))
    return f"<p>{heading}: {size}</p><table>{''.join(rows)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _measures(values: Tensor) -> list[str]:
    """Return the largest R-hat and the smallest effective sample size of entries that vary, or why there are none."""
    if not values.numel():
        return ["", ""]
    if not bool(values.isfinite().all()):
        return ["<strong>not finite</strong>", ""]
    if not bool((values != values[:1, :1]).any()):
        return ["constant", ""]
    found = convergence(values, ("r_hat", "ess_bulk"))
    r_hat, size = (found[name][~found[name].isnan()] for name in ("r_hat", "ess_bulk"))
    largest = round(float(r_hat.max()), 3) if len(r_hat) else None  # a chain alone needs eight draws
    text = "" if largest is None else f"{largest:.3f}"
    bold = largest is not None and largest > _LARGEST_R_HAT
    return [f"<strong>{text}</strong>" if bold else text, f"{float(size.min()):.0f}" if len(size) else ""]
