"""Tables 1 and 2 of the OHMC paper: one chain of 10,000 draws of the matrix mixture, three kernels.

    python -m benchmarks.paper_tables

HMC moves in the polar chart, GHMC and OHMC on the manifold; all three are the kernel of this package, with the same
warm-up, so that they differ by the mechanics alone. Each is tuned to its best: of several mean trajectory lengths, the
one with the largest smallest ESS for each gradient in a run of 2,000 draws; then the 10,000 draws are made anew.
The paper has, for V(2,2): ESS (minimum / median) 20.3 / 63.8 for HMC, 50.2 / 80.4 for GHMC, 103.8 / 139.7 for OHMC, in
13.9, 21.2 and 14.7 s (Yanush & Kropotov, arXiv 1901.08045).
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

LENGTHS = (1.5, 3.0, 6.0, 12.0, 24.0)
DRAWS, TRIAL_DRAWS, WARMUP = 10_000, 2_000, 500

KERNELS = {
    "HMC, polar chart": lambda model, **options: OHMC(
        model, transforms={"X": biject_to(constraints.stiefel).inv}, **options
    ),
    "GHMC": GHMC,
    "OHMC": OHMC,
}


def run(problem, kernel, draws, length):
    pyro.set_rng_seed(0)
    kernel = KERNELS[kernel](pyro_model(problem), trajectory_length=length, jit_compile=True)
    steps = []
    hook = lambda kernel, params, stage, i: steps.append((stage, kernel.last_num_steps))  # noqa: E731
    mcmc = MCMC(kernel, draws, WARMUP, disable_progbar=True, hook_fn=hook)
    started = time.perf_counter()
    mcmc.run()
    seconds = time.perf_counter() - started
    X = mcmc.get_samples(group_by_chain=True)["X"].numpy()
    values = {name: f(X, None) for name, f in problem.functionals.items()}
    sizes = [float(arviz.ess(value)) for value in values.values()]
    gradients = sum(count for stage, count in steps if stage == "Sample")
    means = {name: (x.mean(), x.std() / np.sqrt(float(arviz.ess(x, method="mean")))) for name, x in values.items()}
    return {
        "seconds": seconds,
        "min": min(sizes),
        "median": float(np.median(sizes)),
        "gradients": gradients,
        "deviation": worst_deviation(means, problem.truths()),
    }


def main():
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in ("mixture V(2,2)", "mixture V(3,2)"):
        problem = PROBLEMS[name]
        print(f"\n## {name}, {DRAWS} draws of one chain\n")
        print("| kernel | length | min ESS | median ESS | seconds | min ESS/s | steps a draw | worst z |")
        print("|---|---|---|---|---|---|---|---|")
        for kernel in KERNELS:
            trials = {length: run(problem, kernel, TRIAL_DRAWS, length) for length in LENGTHS}
            best = max(LENGTHS, key=lambda length: trials[length]["min"] / trials[length]["gradients"])
            row = run(problem, kernel, DRAWS, best)
            figures = [
                f"{best:.1f}",
                f"{row['min']:.1f}",
                f"{row['median']:.1f}",
                f"{row['seconds']:.1f}",
                f"{row['min'] / row['seconds']:.1f}",
                f"{row['gradients'] / DRAWS:.1f}",
                f"{row['deviation']:.1f}",
            ]
            print(f"| {kernel} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
