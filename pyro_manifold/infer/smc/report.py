"""What is said of particles when they have arrived: a table, and ArviZ's groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.diagnostics.convergence import convergence
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.symmetries import Symmetry
from pyro_manifold.diagnostics.table import table
from pyro_manifold.infer.smc.results import Result


def text(result: Result, symmetries: Sequence[Symmetry], prob: float) -> str:
    """The table of the particles, what their sites are not known by, and the log evidence.

    Args:
        result: of the runs.
        symmetries: of the posterior.
        prob: probability of the interval.
    """
    runs = len(result.log_evidences)
    lines = [table(result.samples, prob)]
    for symmetry in symmetries:
        lines += [symmetry.sentence(), _agreement(result, symmetry)]
    ways = [] if runs == 1 else [f"by differences between runs {result.error_between:.3f}"]
    ways.append(f"between their chains {result.error_within:.3f}" if ways else "by differences between its chains")
    counted = f"{runs} run" + "s" * (runs > 1)
    lines.append(f"log evidence {result.log_evidence:.3f} ± {result.error:.3f} ({counted}; {', '.join(ways)})")
    return "\n".join(lines)


def _agreement(result: Result, symmetry: Symmetry) -> str:
    """How well runs agree on what the symmetry leaves as it is."""
    names = {*symmetry.sites, *symmetry.reordered}
    samples = {name: x for name, x in result.samples.items() if name in names}
    found = [convergence(x, ("r_hat", "ess_bulk")) for x in known_quantities(samples, [symmetry]).values()]
    r_hat = torch.cat([each["r_hat"].flatten() for each in found])
    sizes = torch.cat([each["ess_bulk"].flatten() for each in found])
    if bool(r_hat.isnan().all()):
        return "On what is known of them runs agree exactly."
    return (
        f"On what is known of them R-hat is at most {float(r_hat[~r_hat.isnan()].max()):.3f}, and the effective size "
        f"at least {float(sizes[~sizes.isnan()].min()):.0f}."
    )


def inferencedata(smc: Any, result: Result, **options: Any) -> Any:
    """Particles, runs in place of chains, with levels and evidence beside them; see `SMC.to_inferencedata`."""
    found = to_inferencedata(smc, **options)
    statistics = found.sample_stats
    for name, attribute in {
        "inverse_temperature": "inverse_temperature",
        "log_evidence_so_far": "log_evidence",
        "acceptance_rate": "acceptance",
    }.items():
        values = torch.stack([getattr(level, attribute) for level in result.levels], 1)
        statistics[name] = (("chain", "level"), values.cpu().numpy())
    statistics.attrs["log_evidence"] = result.log_evidence
    statistics.attrs["log_evidence_error"] = result.error
    statistics.attrs["log_evidences"] = result.log_evidences.tolist()
    return found
