"""Time of one leapfrog step of one chain, under Pyro's own protocol: OHMC beside Pyro's HMC on the polar chart.

    python -m benchmarks.leapfrog

Both kernels are set up and sampled as `pyro.infer.MCMC` does, with trajectories of 50 steps of a fixed size; time of
compiling is left out, momentum draw and Metropolis decision are in.
"""

from __future__ import annotations

import warnings

from benchmarks.problems import PROBLEMS
from benchmarks.scaling import best_time

STEPS = 50


def seconds_of_a_step(kernel):
    kernel.setup(0)
    params = dict(kernel.initial_params)

    def trajectory():
        params.update(kernel.sample(params))

    return best_time(trajectory, 4.0) / STEPS


def main():
    import pyro
    import torch
    from pyro.infer import HMC

    from benchmarks.peers import pyro_model
    from pyro_manifold.infer import OHMC

    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    options = {"step_size": 1e-3, "num_steps": STEPS, "adapt_step_size": False, "adapt_mass_matrix": False}
    print("| problem | Pyro HMC µs | OHMC µs | ratio | OHMC compiled µs | ratio |\n|---|---|---|---|---|---|")
    for name, problem in PROBLEMS.items():
        pyro.set_rng_seed(0)
        model = pyro_model(problem)
        times = [
            1e6 * seconds_of_a_step(kernel)
            for kernel in (HMC(model, **options), OHMC(model, **options), OHMC(model, jit_compile=True, **options))
        ]
        theirs, eager, compiled = times
        print(
            f"| {name} | {theirs:.0f} | {eager:.0f} | {eager / theirs:.2f} | {compiled:.0f} | {compiled / theirs:.2f} |"
        )


if __name__ == "__main__":
    main()
