"""Summary table, one line for each entry of each site, and the dictionary of `MCMC.diagnostics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pyro.ops.stats import hpdi
from torch import Tensor

from pyro_manifold.diagnostics.convergence import convergence, nested_r_hat
from pyro_manifold.diagnostics.disagreement import disagreements

_DECIMALS = {"ess_bulk": 0, "ess_tail": 0, "r_hat": 3, "nested_r_hat": 3}


def table(samples: Mapping[str, Tensor], prob: float, num_superchains: int | None = None) -> str:
    """Return mean, standard deviation, median, narrowest interval, effective sample sizes and R-hat, as text.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        prob: probability of the interval.
        num_superchains: number of superchains for nested R-hat; None to leave it out.

    Example:
        >>> import torch
        >>> draws = torch.randn(4, 500, 2, generator=torch.Generator().manual_seed(0))
        >>> "ess_bulk" in table({"x": draws}, 0.9)
        True
    """
    lines: dict[str, dict[str, float]] = {}
    for name, values in samples.items():
        if not values.numel():  # a site without elements has no lines
            continue
        columns = _columns(values, prob, num_superchains)
        shape = values.shape[2:]
        for place in product(*map(range, shape)):
            label = f"{name}[{','.join(map(str, place))}]" if shape else name
            lines[label] = {column: float(value[place]) for column, value in columns.items()}
    if not lines:
        return ""
    width = max(10, *map(len, lines))
    titles = list(next(iter(lines.values())))
    widths = [max(9, len(title)) for title in titles]
    header = " ".join(f"{title:>{room}}" for title, room in zip(titles, widths, strict=True))
    rows = [
        " ".join(
            f"{line[title]:>{room}.{_DECIMALS.get(title, 2)}f}" for title, room in zip(titles, widths, strict=True)
        )
        for line in lines.values()
    ]
    text = [f"{label:>{width}} {row}" for label, row in zip(lines, rows, strict=True)]
    return "\n".join(["", f"{'':>{width}} {header}", *text, ""])


def _columns(values: Tensor, prob: float, num_superchains: int | None) -> dict[str, Tensor]:
    flat = values.flatten(0, 1)
    flat = flat if flat.is_floating_point() else flat.double()
    low, high = hpdi(flat, prob)
    columns: dict[str, Tensor] = {
        "mean": flat.mean(0),
        "std": flat.std(0),
        "median": flat.median(0).values,
        f"{50 * (1 - prob):.1f}%": low,
        f"{50 * (1 + prob):.1f}%": high,
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


def report(
    samples: Mapping[str, Tensor],
    statistics: Mapping[str, Tensor],
    chains: Sequence[Mapping[str, Any]],
    num_superchains: int | None = None,
) -> dict[str, Any]:
    """Return the dictionary of `MCMC.diagnostics`.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        statistics: ``{name: (chains, draws)}``.
        chains: diagnostics of each chain that the kernel reports.
        num_superchains: number of superchains for nested R-hat; None to leave it out.
    """
    found: dict[str, Any] = {name: measures(value, num_superchains) for name, value in samples.items()}
    for name in {name: None for chain in chains for name in chain if name != "sample stats"}:
        found[name] = {f"chain {k}": chain[name] for k, chain in enumerate(chains) if name in chain}
    density = {"log density": statistics["lp"]} if "lp" in statistics else {}
    return {**found, "disagreeing chains": disagreements({**samples, **density})}
