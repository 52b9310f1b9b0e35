"""Tables 1 and 2 of the OHMC paper: one chain of 10,000 draws of the matrix mixture, three kernels.

    python -m benchmarks.paper_tables

HMC moves in the polar chart, GHMC and OHMC on the manifold; all three are the kernel of this package, so that they
differ by the mechanics alone. Each is tuned to its best: of a grid of step sizes and mean numbers of steps (lengths
jittered by half), the pair with the largest smallest ESS for its cost, from 32 chains of 300 draws; cost is steps + 4,
what a draw takes beside its steps (momentum, energies, decision). Masses stay at 1 in the chart and at d/p on the
manifold. The 10,000 draws of one chain are then made with `jit_compile=True`.

The paper has, ESS as minimum / median: 20.3 / 63.8 for HMC, 50.2 / 80.4 for GHMC, 103.8 / 139.7 for OHMC, in 13.9, 21.2
and 14.7 s (Yanush & Kropotov, arXiv 1901.08045).
"""

from __future__ import annotations

import os
import time
import warnings

import arviz
import numpy as np
import pyro
import torch
from torch.distributions import biject_to

from benchmarks.peers import pyro_model
from benchmarks.problems import PROBLEMS
from benchmarks.run import worst_deviation
from pyro_manifold import constraints
from pyro_manifold.infer import GHMC, MCMC, OHMC

STEP_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
STEPS = (1, 3, 6, 12, 24)
DRAWS, BURN_IN = 10_000, 500

KERNELS = {
    "HMC, polar chart": lambda model, **options: OHMC(
        model, transforms={"X": biject_to(constraints.stiefel).inv}, **options
    ),
    "GHMC": GHMC,
    "OHMC": OHMC,
}


def run(problem, kernel, step_size, steps, *, chains=1, draws=DRAWS, burn_in=BURN_IN):
    pyro.set_rng_seed(0)
    kernel = KERNELS[kernel](
        pyro_model(problem),
        step_size=step_size,
        trajectory_length=step_size * steps,
        trajectory_jitter=0.5 if steps > 1 else 0.0,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        jit_compile=chains == 1,
    )
    mcmc = MCMC(kernel, draws, burn_in, num_chains=chains, disable_progbar=True)
    started = time.perf_counter()
    mcmc.run()
    seconds = time.perf_counter() - started
    X = mcmc.get_samples(group_by_chain=True)["X"].numpy()
    values = {name: f(X, None) for name, f in problem.functionals.items()}
    sizes = [float(arviz.ess(value)) for value in values.values()]
    statistics = kernel.chain_diagnostics()[0]["sample stats"]
    means = {name: (x.mean(), x.std() / np.sqrt(float(arviz.ess(x, method="mean")))) for name, x in values.items()}
    return {
        "seconds": seconds,
        "min": min(sizes),
        "median": float(np.median(sizes)),
        "steps": float(statistics["n_steps"].double().mean()),
        "acceptance": float(statistics["acceptance_rate"].mean()),
        "deviation": worst_deviation(means, problem.truths()),
    }


def tuned(problem, kernel):
    """Step size and number of steps with the largest smallest ESS for their cost."""

    def efficiency(pair):
        trial = run(problem, kernel, *pair, chains=32, draws=300, burn_in=100)
        return trial["min"] / (trial["steps"] + 4) if np.isfinite(trial["min"]) else 0.0

    return max(((step_size, steps) for step_size in STEP_SIZES for steps in STEPS), key=efficiency)


def main():
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in ("mixture V(2,2)", "mixture V(3,2)"):
        problem = PROBLEMS[name]
        print(f"\n## {name}, {DRAWS} draws of one chain\n")
        print("| kernel | ε | steps | acceptance | min ESS | median ESS | seconds | min ESS/s | worst z |")
        print("|---|---|---|---|---|---|---|---|---|")
        for kernel in KERNELS:
            step_size, steps = tuned(problem, kernel)
            row = run(problem, kernel, step_size, steps)
            figures = [
                f"{step_size}",
                f"{steps}",
                f"{row['acceptance']:.2f}",
                f"{row['min']:.1f}",
                f"{row['median']:.1f}",
                f"{row['seconds']:.1f}",
                f"{row['min'] / row['seconds']:.1f}",
                f"{row['deviation']:.1f}",
            ]
            print(f"| {kernel} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
