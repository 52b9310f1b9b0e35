"""Cost of one step of MSD by the dimension d, at l = 10 d cases.

    python -m benchmarks.speed.msd.step_cost [DIMENSION ...]

Logistic regression, 16 chains, one step an iteration, process time; native code where a kernel has it, and without.
"O(l d² + d³)" is the time of a chain's step over (l + d) d² + d³, in nanoseconds: constant where the order holds.
"""

import sys
import warnings
from itertools import product

import numpy as np
import torch

from benchmarks.problems.coefficients import logistic, with_intercept
from benchmarks.speed.native_kernels import microseconds
from benchmarks.study import set_up
from benchmarks.tables import show
from pyro_manifold.infer import MSD

DIMENSIONS = (10, 20, 50, 100)
VERSIONS = tuple(product((True, False), repeat=2))
CHAINS, SECONDS = 16, 3.0
ITERATIONS = 1500  # of a block, by d: continuing a run takes as long as a hundred small iterations


def cost(dimension, *, adjusted, native, chains=CHAINS, iterations=ITERATIONS, seconds=SECONDS):
    """Microseconds of a step of one chain."""
    rng = np.random.default_rng(0)
    design = with_intercept(rng, 10 * dimension, dimension) / dimension**0.5
    posterior = logistic("scaling", design, 1.0, rng.standard_normal(dimension), rng)

    def make():
        return MSD(posterior.pyro_model, step_size=0.1, metropolis=adjusted, num_steps=1, adapt_step_size=False)

    # So many draws that native code is compiled: sooner where a step has longer to run.
    draws = max(100, 10_000 // dimension) if native else 5
    start = {"w": torch.zeros(chains, dimension)}
    block = max(4, iterations // dimension)
    return microseconds(make, native, draws, block, seconds, chains=chains, start=start) / chains


def rows(dimensions, versions):
    for (adjusted, native), d in product(versions, dimensions):
        each = cost(d, adjusted=adjusted, native=native)
        operations = 11 * d * d**2 + d**3
        name = f"{'adjusted' if adjusted else 'unadjusted'}{', native' if native else ''}"
        yield [name, d, f"{each:.0f}", f"{1e3 * each / operations:.2f}"]


def main(dimensions=DIMENSIONS, versions=VERSIONS):
    warnings.filterwarnings("ignore")
    set_up()
    show(("version", "d", "µs a chain's step", "O(l d² + d³): ns"), rows(dimensions, versions))


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or DIMENSIONS)
