"""Summary table, one line for each entry of each site."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from numbers import Real

import torch
from pyro.ops.stats import hpdi
from torch import Tensor

from pyro_manifold.diagnostics.convergence import convergence, nested_r_hat

_WORST_ROWS = 10
_DECIMALS = {"ess_bulk": 0, "ess_tail": 0, "r_hat": 3, "nested_r_hat": 3}


def table(
    samples: Mapping[str, Tensor], prob: float, num_superchains: int | None = None, max_rows: int | None = None
) -> str:
    """Return mean, standard deviation, median, narrowest interval, effective sample sizes and R-hat, as text.

    Constant entries of a site with others that vary are counted below its lines.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        prob: probability of the interval.
        num_superchains: number of superchains for nested R-hat; None to leave it out.
        max_rows: for a site with more entries than this, the ten with the largest R-hat are shown, and the number of
            the others; None to show all.

    Raises:
        ValueError: for ``prob`` that is not between 0 and 1, or ``max_rows`` that is not a positive integer.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, 2, generator=torch.Generator().manual_seed(0))
        >>> "ess_bulk" in table({"x": draws}, 0.9)
        True
        >>> print(table({"x": draws}, 0.9, max_rows=1).splitlines()[-1])
        and 1 more of x: r_hat at most 1.001, ess_bulk at least 1936
    """
    if max_rows is not None and (not isinstance(max_rows, int) or isinstance(max_rows, bool) or max_rows < 1):
        raise ValueError(f"max_rows={max_rows!r}, expected a positive integer, or None for the default.")
    if not isinstance(prob, Real) or isinstance(prob, bool) or not 0 < prob < 1:
        raise ValueError(f"prob={prob!r}, expected a probability of the interval between 0 and 1, such as 0.9.")
    lines: dict[str, dict[str, float]] = {}
    footnotes: dict[str, str] = {}  # below the line of the same label
    for name, values in samples.items():
        if not values.numel():  # a site without elements has no lines
            continue
        columns = _columns(values, prob, num_superchains)
        shape = values.shape[2:]
        entries, hidden = _varying(name, columns["std"])
        if max_rows is not None and len(entries) > max_rows:
            entries, others = _worst(name, columns, entries, min(_WORST_ROWS, max_rows))
            hidden = f"{others}\n{hidden}" if hidden else others
        for place in entries:
            label = f"{name}[{','.join(map(str, place))}]" if shape else name
            lines[label] = {column: float(value[place]) for column, value in columns.items()}
        if hidden:
            footnotes[label] = hidden
    if not lines:
        return ""
    width = max(10, *map(len, lines))
    titles = list(next(iter(lines.values())))
    widths = [max(9, len(title)) for title in titles]
    header = " ".join(f"{title:>{room}}" for title, room in zip(titles, widths, strict=True))
    text = []
    for label, line in lines.items():
        row = " ".join(
            f"{line[title]:>{room}.{_DECIMALS.get(title, 2)}f}" for title, room in zip(titles, widths, strict=True)
        )
        text += [f"{label:>{width}} {row}", *([footnotes[label]] if label in footnotes else [])]
    return "\n".join(["", f"{'':>{width}} {header}", *text, ""])


def _varying(name: str, deviations: Tensor) -> tuple[list[tuple[int, ...]], str]:
    """Return the entries that vary, and a line on those that do not, such as the zeros of a triangular matrix.

    All entries are returned if none varies.
    """
    constant = deviations == 0
    entries = list(product(*map(range, deviations.shape)))
    if not constant.any() or constant.all():
        return entries, ""
    count = int(constant.sum())
    words = "entry" if count == 1 else "entries"
    return [place for place in entries if not constant[place]], f"and {count} constant {words} of {name}"


def _worst(
    name: str, columns: Mapping[str, Tensor], entries: list[tuple[int, ...]], count: int
) -> tuple[list[tuple[int, ...]], str]:
    """Return the entries with the largest R-hat, of equal ones the smallest ESS, and a line on the others.

    Entries without R-hat have draws that are not finite, and come first.
    """
    r_hat, size = (torch.stack([columns[key][place] for place in entries]) for key in ("r_hat", "ess_bulk"))
    order = size.nan_to_num(nan=-1.0).argsort(stable=True)
    order = order[r_hat.nan_to_num(nan=torch.inf, posinf=torch.inf)[order].argsort(descending=True, stable=True)]
    worst, others = order[:count], order[count:]
    line = f"and {len(others)} more of {name}"
    known = others[~r_hat[others].isnan()]
    if len(known):
        line += f": r_hat at most {float(r_hat[known].max()):.3f}, ess_bulk at least {float(size[known].min()):.0f}"
    return [entries[k] for k in worst.tolist()], line


def _columns(values: Tensor, prob: float, num_superchains: int | None) -> dict[str, Tensor]:
    flat = values.flatten(0, 1)
    flat = flat if flat.is_floating_point() else flat.double()
    low, high = hpdi(flat, prob)
    columns: dict[str, Tensor] = {
        "mean": flat.mean(0),
        "std": flat.std(0),
        "median": flat.median(0).values,
        f"hdi{100 * prob:g}_lb": low,
        f"hdi{100 * prob:g}_ub": high,
    }
    columns.update(convergence(values, ("ess_bulk", "ess_tail", "r_hat")).items())
    if num_superchains is not None:
        columns["nested_r_hat"] = nested_r_hat(values, num_superchains)
    return columns


def measures(values: Tensor, num_superchains: int | None = None) -> dict[str, Tensor]:
    """Compute effective sample sizes and R-hat of ``(chains, draws, ...)``, under their names in Pyro and ArviZ."""
    found = convergence(values, ("ess_mean", "ess_bulk", "ess_tail", "r_hat"))
    names = {"n_eff": found["ess_mean"], "ess_bulk": found["ess_bulk"], "ess_tail": found["ess_tail"]}
    names["r_hat"] = found["r_hat"]
    if num_superchains is not None:
        names["nested_r_hat"] = nested_r_hat(values, num_superchains)
    return names
