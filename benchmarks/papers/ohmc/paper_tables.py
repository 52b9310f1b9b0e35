"""Tables 1 and 2 of the OHMC paper: one chain of 10,000 draws of its matrix mixture, three kernels.

python -m benchmarks.papers.ohmc.paper_tables [--short]
"""

from __future__ import annotations

import argparse
import os
import warnings
from itertools import product

import numpy as np
import torch
from torch.distributions import biject_to

from benchmarks.estimates import summary, worst_deviation
from benchmarks.peers import pyro_manifold
from benchmarks.problems.mixtures import product_mixture
from benchmarks.tables import show
from pyro_manifold import constraints

STEP_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8)
STEPS = (1, 3, 8, 20)
PAIRS = tuple(product(STEP_SIZES, STEPS))
DRAWS, BURN_IN = 10_000, 500
PREFACE = """\
The problem of the paper (Yanush & Kropotov, arXiv 1901.08045), a distribution of (Q, R) in which the product QR has 16
modes; for V(3,2) the paper does not say which 16, and `benchmarks/problems/mixtures.py` does. One chain of 10,000 draws
after 500 of burn-in.

HMC moves Q in the polar chart, GHMC and OHMC on the manifold, all three R by log r₁₁, r₁₂, log r₂₂; all three are
the kernel of this package, so that they differ by the mechanics of Q alone. Each is tuned to its best: of a grid of
step sizes and mean numbers of steps (lengths jittered by half), the pair with the largest smallest ESS for its
cost, from 32 chains of 300 draws; cost is steps + 4, what a draw takes beside its steps (momentum, energies,
decision). Masses stay at 1 in the chart and at d/p on the manifold. All three have native code, and seconds are
without compiling it. ESS is over the entries of Q and of QR; "worst z" compares with exact draws and the exact mean
of QR.

The paper has, ESS as minimum / median: 20.3 / 63.8 for HMC, 50.2 / 80.4 for GHMC, 103.8 / 139.7 for OHMC, in 13.9,
21.2 and 14.7 s.
"""

KERNELS = {"HMC, polar chart": "OHMC", "GHMC": "GHMC", "OHMC": "OHMC"}


def run(problem, name, step_size, steps, *, chains=1, draws=DRAWS, burn_in=BURN_IN):
    options = {"kernel": KERNELS[name], "step_size": step_size, "trajectory_length": step_size * steps}
    options |= {"trajectory_jitter": 0.5 if steps > 1 else 0.0}
    if "chart" in name:
        options["transforms"] = {"X": biject_to(constraints.stiefel).inv}
    sizes = {"chains": chains, "warmup": burn_in, "draws": draws}
    found = pyro_manifold(problem, **sizes, adapt_step_size=False, adapt_mass_matrix=False, **options)
    summarised = summary(problem.values(found.draws))
    return {
        "seconds": found.figures["seconds"] - found.figures["compiling"],
        "min": summarised["ess_min"],
        "median": summarised["ess_median"],
        "steps": found.figures["gradients"] / (chains * (burn_in + draws)),
        "acceptance": float(np.mean(found.figures["acceptance"])),
        "deviation": worst_deviation(summarised["means"], problem.truths()),
    }


def tuned(problem, name, pairs, draws=300):
    """Step size and number of steps with the largest smallest ESS for their cost."""

    def efficiency(pair):
        trial = run(problem, name, *pair, chains=32, draws=draws, burn_in=draws // 3)
        return trial["min"] / (trial["steps"] + 4) if np.isfinite(trial["min"]) else 0.0

    return max(pairs, key=efficiency)


COLUMNS = ("kernel", "ε", "steps", "acceptance", "min ESS", "median ESS", "seconds", "min ESS/s", "worst z")


def rows(problem, pairs, draws):
    for name in KERNELS:
        step_size, steps = tuned(problem, name, pairs)
        found = run(problem, name, step_size, steps, draws=draws)
        yield [
            name,
            step_size,
            steps,
            f"{found['acceptance']:.2f}",
            *(f"{found[key]:.1f}" for key in ("min", "median", "seconds")),
            f"{found['min'] / found['seconds']:.1f}",
            f"{found['deviation']:.1f}",
        ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="V(2,2), one step and few draws")
    short = parser.parse_args(argv).short
    draws, pairs, widths = (50, PAIRS[5:6], (2,)) if short else (DRAWS, PAIRS, (2, 3))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"## The tables of the OHMC paper\n\n{PREFACE}", flush=True)
    for problem in (product_mixture(n, *([100_000] if short else [])) for n in widths):
        print(f"### {problem.name}, {draws} draws of one chain\n")
        show(COLUMNS, rows(problem, pairs, draws))
        print()


if __name__ == "__main__":
    main()
