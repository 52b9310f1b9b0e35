"""End-of-run warnings of sequential Monte Carlo."""

from __future__ import annotations

import warnings

from pyro_manifold.diagnostics import MissedMass, RunsDiffer
from pyro_manifold.infer.smc.annealing import AnnealingSettings
from pyro_manifold.infer.smc.bound import Bound
from pyro_manifold.infer.smc.results import Result

_RUNS_DIFFER = 1.0  # standard deviation of log evidences, in nats
_FEW_CHAINS = 8
_CALLER = 4  # stack level of the caller of `SMC.run`


def warn(result: Result, plan: AnnealingSettings, num_starts: int) -> None:
    """Warn if the evidence or its standard error are unreliable.

    Args:
        result: result of all runs.
        plan: settings of the algorithm.
        num_starts: number of descents, a lower bound of the number suggested.
    """
    result.all_edges.warn()
    _warn_of_few_chains(plan.runs * plan.chains)
    warn_of_differences(result)
    _warn_of_lost_mass(result, plan, num_starts)


def _warn_of_few_chains(chains: int) -> None:
    if chains < _FEW_CHAINS:
        warnings.warn(
            f"The standard error of the log evidence is estimated from only {chains} chains, and may be several "
            f"times too small: increase num_particles or num_runs, to {_FEW_CHAINS} chains or more.",
            stacklevel=_CALLER,
        )


def warn_of_differences(result: Result) -> None:
    """Warn if the standard deviation of log evidences between runs exceeds 1."""
    runs = len(result.log_evidences)
    spread = float(result.log_evidences.std()) if runs > 1 else 0.0
    if spread > _RUNS_DIFFER:
        message = (
            f"The log evidences of {runs} runs differ with a standard deviation of {spread:.2g}: some runs may "
            "have missed modes, or have wrong proportions of them. Increase num_particles or chain_length."
        )
        warnings.warn(RunsDiffer(message, remedy="num_particles"), stacklevel=_CALLER)


def _warn_of_lost_mass(result: Result, plan: AnnealingSettings, num_starts: int) -> None:
    found, bound, error = result.log_evidence, result.bound, result.error_of_particles
    if bound.contradicts(found, error, plan.runs * (plan.chains - 1)):
        remedy = f"use {_starts(bound, num_starts)}more num_particles"
        message = bound.sentence("the particles", found, error, remedy)
        warnings.warn(MissedMass(message, remedy="num_particles"), stacklevel=_CALLER)


def _starts(bound: Bound, num_starts: int) -> str:
    """Suggest a number of descents that finds the mode with the largest deficit of draws."""
    if bound.basin:
        return f"init='modes' with num_starts={max(num_starts, bound.enough_starts)}, or "
    if bound.first:
        return (
            f"init='modes' with num_starts far above {bound.first} (none of so many initial draws is near that "
            "mode), or "
        )
    return ""
