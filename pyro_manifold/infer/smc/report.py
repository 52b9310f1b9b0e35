"""Reports of the final particles: summary table, and export to ArviZ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pyro_manifold.diagnostics import Symmetry, agreement, table, to_inferencedata
from pyro_manifold.infer.mcmc.running import aligned_summary
from pyro_manifold.infer.smc.results import Result


def text(
    result: Result, symmetries: Sequence[Symmetry], prob: float, *, align: bool = True, max_rows: int | None = None
) -> str:
    """Return the summary table of the particles, with symmetries of the posterior and the log evidence.

    Args:
        result: result of all runs.
        symmetries: symmetries of the posterior.
        prob: probability of the interval.
        align: whether to align the particles.
        max_rows: as in `MCMC.summary`.
    """
    runs = len(result.log_evidences)
    if align:
        first, sentences = aligned_summary(
            result.samples, symmetries, result.log_density, prob=prob, max_rows=max_rows, of="runs"
        )
        lines = [first, *sentences]
    else:
        lines = [table(result.samples, prob, max_rows=max_rows)]
        for symmetry in symmetries:
            lines += [symmetry.sentence(), agreement(result.samples, symmetry, "runs")]
    ways = [] if runs == 1 else [f"by differences between runs {result.error_between:.3f}"]
    ways.append(f"between their chains {result.error_within:.3f}" if ways else "by differences between its chains")
    if not math.isnan(result.bound.log_evidence):
        ways.append(f"at least {result.bound.sure:.3f} by the modes that descents find")
    counted = f"{runs} run" + "s" * (runs > 1)
    lines.append(f"log evidence {result.log_evidence:.3f} ± {result.error:.3f} ({counted}; {', '.join(ways)})")
    return "\n".join(lines)


def inferencedata(smc: Any, result: Result, **options: Any) -> Any:
    """Export particles to ArviZ, with runs as chains, and levels and evidence; see `SMC.to_inferencedata`."""
    from xarray import DataArray

    found = to_inferencedata(smc, **options)
    statistics = found.sample_stats
    for name, attribute in {
        "inverse_temperature": "inverse_temperature",
        "log_evidence_so_far": "log_evidence",
        "acceptance_rate": "acceptance",
    }.items():
        values = torch.stack([getattr(level, attribute) for level in result.levels], 1)
        # A DataTree, of ArviZ 1, would take dimensions and values in a tuple for one value.
        statistics[name] = DataArray(values.cpu().numpy(), dims=("chain", "level"))
    statistics.attrs["log_evidence"] = result.log_evidence
    statistics.attrs["log_evidence_error"] = result.error
    statistics.attrs["log_evidence_bound"] = result.bound.sure
    statistics.attrs["log_evidences"] = result.log_evidences.tolist()
    return found
