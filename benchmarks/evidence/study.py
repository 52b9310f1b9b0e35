"""`SMC` on models whose evidence is known: errors over seeds, and whether the stated standard errors cover."""

from __future__ import annotations

import time
import warnings

import numpy as np

from benchmarks.evidence.problems import PROBLEMS
from benchmarks.tables import show

TABLE = ("problem", "truth", "mean", "spread", "stated", "spread / stated", "≤ 2 SE", "largest", "s a call")
HEADER = """\
Mean and spread are of the log evidence over {seeds} calls with seeds of their own, each of {runs} runs of {particles}
particles; stated is the mean standard error, and largest the largest error in its units.
"""


def study(problem, seeds, particles, runs):
    """Log evidences, standard errors ``(seeds,)`` and seconds of processor time of a call."""
    import pyro
    import torch

    from pyro_manifold.infer import OHMC, SMC

    torch.set_default_dtype(torch.float64)
    found, began = [], time.process_time()
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        smc = SMC(OHMC(problem.pyro_model), particles, runs, disable_progbar=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of runs that differ: they are counted here
            smc.run()
        found.append((smc.log_evidence, smc.log_evidence_error))
    evidences, errors = np.array(found).T
    return evidences, errors, (time.process_time() - began) / seeds


def row(problem, seeds, particles, runs):
    truth, uncertainty = problem.truth()
    evidences, errors, seconds = study(problem, seeds, particles, runs)
    errors = np.hypot(errors, uncertainty)
    distances = np.abs(evidences - truth) / errors
    spread = evidences.std(ddof=1)
    figures = (truth, evidences.mean(), spread, errors.mean(), spread / errors.mean())
    covered = f"{(distances <= 2).sum()} of {seeds}"
    return (problem.name, *[f"{x:.3f}" for x in figures], covered, f"{distances.max():.1f}", f"{seconds:.1f}")


def main(seeds, particles, runs, names):
    print(HEADER.format(seeds=seeds, particles=particles, runs=runs))
    show(TABLE, (row(PROBLEMS[name], seeds, particles, runs) for name in names or PROBLEMS))
