"""Time of one leapfrog step of one chain, under Pyro's own protocol: OHMC beside Pyro's HMC on the polar chart.

python -m benchmarks.speed.leapfrog
python -m benchmarks.speed.leapfrog mixture      problems whose name contains this
"""

from __future__ import annotations

import sys
import warnings

from benchmarks.problems.page import PROBLEMS
from benchmarks.tables import show
from benchmarks.timing import best_time

STEPS = 50
PREFACE = f"""\
One chain, in the hands of Pyro's own protocol: both kernels are set up and sampled as `pyro.infer.MCMC` does, with
trajectories of {STEPS} steps of a fixed size. Compiling is left out, momentum draw and Metropolis decision are in.
Ratios are to Pyro's HMC on the polar chart without compiling.
"""


def seconds_of_a_step(kernel, seconds=1.5):
    kernel.setup(0)
    params = dict(kernel.initial_params)

    def trajectory():
        params.update(kernel.sample(params))

    return best_time(trajectory, seconds) / STEPS


def rows(problems):
    import pyro
    from pyro.infer import HMC

    from pyro_manifold.infer import OHMC

    options = {"step_size": 1e-3, "num_steps": STEPS, "adapt_step_size": False, "adapt_mass_matrix": False}
    for problem in problems:
        pyro.set_rng_seed(0)
        kernels = (
            HMC(problem.pyro_model, **options),
            HMC(problem.pyro_model, jit_compile=True, ignore_jit_warnings=True, **options),
            OHMC(problem.pyro_model, **options),
            OHMC(problem.pyro_model, jit_compile=True, **options),
        )
        theirs, *others = (1e6 * seconds_of_a_step(kernel) for kernel in kernels)
        ratios = [cell for time in others for cell in (f"{time:.0f}", f"{time / theirs:.2f}")]
        yield [problem.name, f"{theirs:.0f}", *ratios]


def main(only=""):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    problems = [problem for name, problem in PROBLEMS.items() if only in name]
    print(f"## One leapfrog step\n\n{PREFACE}", flush=True)
    columns = ("Pyro HMC µs", "jit_compile µs", "ratio", "OHMC µs", "ratio", "OHMC compiled µs", "ratio")
    show(("problem", *columns), rows(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])
