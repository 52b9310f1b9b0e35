"""Results of sequential Monte Carlo as a posterior: runs in place of chains, with evidence and levels."""

from __future__ import annotations

import math

import torch

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Notes, Posterior
from pyro_manifold.infer.smc.results import Result


def as_posterior(result: Result, program: Program, chain_length: int, from_prior: bool) -> Posterior:
    """Return the particles as a posterior.

    Args:
        result: result of all runs.
        program: the model with its arguments.
        chain_length: number of successive particles that are states of one chain.
        from_prior: whether the path began at the prior.
    """
    levels = {
        name: torch.stack([getattr(level, attribute) for level in result.levels], 1)
        for name, attribute in {
            "inverse_temperature": "inverse_temperature",
            "log_evidence_so_far": "log_evidence",
            "acceptance_rate": "acceptance",
        }.items()
    }
    attributes = {
        "log_evidence": result.log_evidence,
        "log_evidence_error": result.error,
        "log_evidence_bound": result.bound.sure,
        "log_evidences": result.log_evidences.tolist(),
    }
    notes = Notes(
        lines=[evidence_line(result)],
        chain_length=chain_length,
        relative_variance=math.expm1(result.error**2),
        from_prior=from_prior,
        levels=levels,
        attributes=attributes,
    )
    return Posterior(result.samples, {"lp": result.log_density}, program, notes, unit="runs")


def evidence_line(result: Result) -> str:
    """Return the log evidence with its standard errors, as a line."""
    runs = len(result.log_evidences)
    ways = [] if runs == 1 else [f"by differences between runs {result.error_between:.3f}"]
    ways.append(f"between their chains {result.error_within:.3f}" if ways else "by differences between its chains")
    if not math.isnan(result.bound.log_evidence):
        ways.append(f"at least {result.bound.sure:.3f} by the modes that descents find")
    counted = f"{runs} run" + "s" * (runs > 1)
    return f"log evidence {result.log_evidence:.3f} ± {result.error:.3f} ({counted}; {', '.join(ways)})"
