"""How many chains of exact MSD stay where they start, because a step that suits the posterior is refused there.

    python -m benchmarks.geometry.starts

A chain is stuck if it accepts fewer than 2 % of 100 trajectories after 50 of warm-up; 256 chains.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import torch

from benchmarks.geometry.posteriors import POSTERIORS

STEPS = ((0.5, 3), (0.25, 4), (0.1, 4))
CHAINS, WARMUP, DRAWS = 256, 50, 100


def stuck(posterior, radius, step_size, num_steps, chains=CHAINS):
    """The share of chains that are stuck, from starts uniform in (-radius, radius)."""
    import pyro
    from pyro.infer.autoguide.initialization import init_to_uniform

    from pyro_manifold.infer import MCMC, MSD

    pyro.set_rng_seed(0)
    options = {"num_steps": num_steps, "init_strategy": partial(init_to_uniform, radius=radius)}
    kernel = MSD(posterior.pyro_model, step_size, 0.5, metropolis=True, **options)
    mcmc = MCMC(kernel, DRAWS, WARMUP, num_chains=chains, disable_progbar=True)
    mcmc.run()
    return float(np.mean([rate < 0.02 for rate in mcmc.diagnostics()["acceptance rate"].values()]))


def main(names=("logistic", "Poisson"), radii=(2.0, 0.1), steps=STEPS, chains=CHAINS):
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    print("| posterior | starts within | ε | steps | stuck |\n|---|---|---|---|---|")
    for name in names:
        for radius in radii:
            for step_size, num_steps in steps:
                share = stuck(POSTERIORS[name], radius, step_size, num_steps, chains)
                print(f"| {name} | {radius} | {step_size} | {num_steps} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
