"""Measure one peer on one problem and print a line of JSON; `benchmarks.run` calls it in a process of its own.

python -m benchmarks.measure PROBLEM PEER CHAINS WARMUP DRAWS
"""

from __future__ import annotations

import json
import resource
import sys
import warnings

import numpy as np

from benchmarks.peers import CONFIGURATIONS
from benchmarks.problems import PROBLEMS

warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)


def summary(values):
    """Effective sizes, R-hat, and means with their standard errors, of ``{name: (chains, draws)}``."""
    import arviz

    sizes = [float(arviz.ess(value, method="bulk")) for value in values.values()]
    means = {}
    for name, value in values.items():
        means[name] = [float(value.mean()), float(value.std() / np.sqrt(arviz.ess(value, method="mean")))]
    return {
        "ess_min": min(sizes),
        "ess_median": float(np.median(sizes)),
        "rhat": max(float(arviz.rhat(value)) for value in values.values()),
        "means": means,
    }


def measure(problem_name, peer_name, chains, warmup, draws):
    problem = PROBLEMS[problem_name]
    run, options = CONFIGURATIONS[peer_name]
    X, v, figures = run(problem, chains=chains, warmup=warmup, draws=draws, **options)
    return {
        "problem": problem_name,
        "peer": peer_name,
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seconds": figures["seconds"],
        "gradients": figures["gradients"],
        **summary({name: f(X, v) for name, f in problem.functionals.items()}),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    problem_name, peer_name, *numbers = sys.argv[1:]
    print(json.dumps(measure(problem_name, peer_name, *map(int, numbers))))
