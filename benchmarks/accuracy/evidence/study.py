"""`SMC` and replica exchange on models whose evidence is known: errors over seeds, and whether stated ones cover.

A second table has what the lower bound about the modes that descents find adds: errors in units of what draws state by
themselves, and of what is stated with the bound; warnings; and what finding the bound costs.
"""

import time
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import pyro

from benchmarks.accuracy.evidence.problems import PROBLEMS, UNEQUAL
from benchmarks.tables import formatted, show
from pyro_manifold.infer import MCMC, OHMC, SMC

TABLE = ("problem", "truth", "mean", "spread", "stated", "spread / stated", "≤ 2 SE", "largest", "s a call")
HEADER = """\
Mean and spread are of the log evidence over {seeds} calls with seeds of their own, each of {runs} runs of {particles}
particles; stated is the mean standard error, and largest the largest error in its units.
"""


LOST_TABLE = (
    "problem", "truth", "mean error", "rms z of draws alone", "rms z", "largest |z|", "warned", "|z| > 3 unwarned",
    "gradients of the bound", "s a call",
)  # fmt: skip
LOST_HEADER = """\
{seeds} calls with seeds of their own, each of {way}. z is the error of the log evidence in stated standard
errors, of draws alone without the lower bound; a call is warned of if it says that mass is lost or that runs differ;
gradients of the bound are relative to those of the run.
"""
REPLICAS = {"num_samples": 1000, "warmup_steps": 300, "num_chains": 4}


class Found(NamedTuple):
    """One call.

    Attributes:
        log_evidence: its estimate.
        error: as stated.
        error_of_draws: without the lower bound.
        warned: whether it warned.
        share: of the gradients of the run that the bound took in addition.
    """

    log_evidence: float
    error: float
    error_of_draws: float
    warned: bool
    share: float


def by_particles(problem, particles, runs):
    smc = SMC(OHMC(problem.pyro_model), particles, runs, disable_progbar=True)
    warned = _warned(smc.run)
    result = smc.result
    gradients = sum(level.steps for level in result.levels) * runs * particles / smc._options["chain_length"]
    share = result.bound.evaluations / gradients
    return Found(result.log_evidence, result.error, result.error_of_particles, warned, share)


def by_replicas(problem):
    mcmc = MCMC(OHMC(problem.pyro_model), tempering=True, disable_progbar=True, **REPLICAS)
    warned = _warned(mcmc.run)
    run = mcmc._run_here
    gradients = run.iteration * (run.tuning.example.num_steps + 1) * len(run.state.energy)
    evidence, error = run.log_evidence
    return Found(evidence, error, run.counts.log_evidence[1], warned, run.bound.evaluations / gradients)


def _warned(run):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run()
    return any("too low" in str(each.message) or "runs differ" in str(each.message) for each in said)


def study(call, seeds):
    """Results of each call, its fields as arrays ``(seeds,)``, and seconds of processor time of a call."""
    found, began = [], time.process_time()
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        found.append(call())
    return Found(*map(np.array, zip(*found, strict=True))), (time.process_time() - began) / seeds


def row(problem, seeds, particles, runs):
    truth, uncertainty = problem.truth()
    found, seconds = study(partial(by_particles, problem, particles, runs), seeds)
    evidences, errors = found.log_evidence, np.hypot(found.error, uncertainty)
    distances = np.abs(evidences - truth) / errors
    spread = evidences.std(ddof=1)
    figures = (truth, evidences.mean(), spread, errors.mean(), spread / errors.mean())
    covered = f"{(distances <= 2).sum()} of {seeds}"
    return (problem.name, *[f"{x:.3f}" for x in figures], covered, f"{distances.max():.1f}", f"{seconds:.1f}")


def lost_row(problem, seeds, call):
    truth, uncertainty = problem.truth()
    found, seconds = study(partial(call, problem), seeds)
    off = found.log_evidence - truth
    z, alone = (off / np.hypot(error, uncertainty) for error in (found.error, found.error_of_draws))
    squares = [np.sqrt((each**2).mean()) for each in (alone, z)]
    errors = formatted(".3f +.3f .2f .2f .1f", truth, off.mean(), *squares, np.abs(z).max())
    counts = [f"{count.sum()} of {seeds}" for count in (found.warned, (np.abs(z) > 3) & ~found.warned)]
    return (problem.name, *errors, *counts, *formatted(".1% .1f", found.share.mean(), seconds))


def main(seeds, particles, runs, names):
    print(HEADER.format(seeds=seeds, particles=particles, runs=runs))
    show(TABLE, (row(PROBLEMS[name], seeds, particles, runs) for name in names or PROBLEMS))


def lost(seeds, particles, runs, names, replicas):
    """The second table."""
    of_replicas = "{num_chains} chains of replica exchange, {num_samples} iterations after {warmup_steps} of warm-up"
    way = of_replicas.format(**REPLICAS) if replicas else f"{runs} runs of {particles} particles"
    print(LOST_HEADER.format(seeds=seeds, way=way))
    problems = {**UNEQUAL, **PROBLEMS}
    call = by_replicas if replicas else partial(by_particles, particles=particles, runs=runs)
    show(LOST_TABLE, (lost_row(problems[name], seeds, call) for name in names or problems))
