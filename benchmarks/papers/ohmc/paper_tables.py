"""Tables 1 and 2 of the OHMC paper: chains of 10,000 draws of its matrix mixture, three kernels.

python -m benchmarks.papers.ohmc.paper_tables [--short] [--seeds 0 1 2]
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
modes; for V(3,2) the paper does not say which 16, and `benchmarks/problems/mixtures.py` does. One chain of 10,000
draws after 500 of burn-in, for each of three seeds.

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


def run(problem, name, step_size, steps, *, chains=1, draws=DRAWS, burn_in=BURN_IN, seed=0):
    options = {"kernel": KERNELS[name], "step_size": step_size, "trajectory_length": step_size * steps}
    options |= {"trajectory_jitter": 0.5 if steps > 1 else 0.0}
    if "chart" in name:
        options["transforms"] = {"X": biject_to(constraints.stiefel).inv}
    sizes = {"chains": chains, "warmup": burn_in, "draws": draws, "seed": seed}
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


COLUMNS = (
    "problem", "kernel", "ε", "steps", "acceptance", "min ESS", "median ESS", "seconds", "min ESS/s", "worst z",
)  # fmt: skip
DIGITS = {"min": 0, "median": 0, "seconds": 1}


def chains_of(problem, pairs, draws, seeds):
    """For each kernel its step size, number of steps, and what chains with these have come to."""
    for name in KERNELS:
        pair = tuned(problem, name, pairs)
        yield name, pair, [run(problem, name, *pair, draws=draws, seed=seed) for seed in seeds]


def row(problem, name, pair, found):
    """Figures in the order of seeds, but for the mean acceptance and the largest deviation."""
    figures = [", ".join(f"{each[key]:.{digits}f}" for each in found) for key, digits in DIGITS.items()]
    rate = ", ".join(f"{each['min'] / each['seconds']:.0f}" for each in found)
    acceptance, deviation = np.mean([each["acceptance"] for each in found]), max(each["deviation"] for each in found)
    return [problem, name, *pair, f"{acceptance:.2f}", *figures, rate, f"{deviation:.1f}"]


def comparison(problem, found):
    """A line on OHMC beside the others: ratios of means over seeds."""
    least = {name: np.mean([each["min"] for each in chains]) for name, chains in found.items()}
    rate = {name: np.mean([each["min"] / each["seconds"] for each in chains]) for name, chains in found.items()}
    ratios = (
        f"{least['OHMC'] / least[name]:.2f} and {rate['OHMC'] / rate[name]:.2f} of {name}"
        for name in KERNELS
        if name != "OHMC"
    )
    return f"- {problem}, least ESS and least ESS a second of OHMC: {'; '.join(ratios)}."


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="V(2,2), one step and few draws")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the chains")
    arguments = parser.parse_args(argv)
    draws, pairs, widths = (50, PAIRS[5:6], (2,)) if arguments.short else (DRAWS, PAIRS, (2, 3))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"## The tables of the OHMC paper\n\n{PREFACE}", flush=True)
    found = {}

    def rows():
        for n in widths:
            problem, title = product_mixture(n, *([100_000] if arguments.short else [])), f"V({n},2)"
            found[title] = {}
            for name, pair, chains in chains_of(problem, pairs, draws, arguments.seeds):
                found[title][name] = chains
                yield row(title, name, pair, chains)

    show(COLUMNS, rows())
    print("\n" + "\n".join(comparison(*each) for each in found.items()))


if __name__ == "__main__":
    main()
