"""How the cost of one step of MSD grows with the dimension d, at l = 10 d cases.

    python -m benchmarks.speed.msd.step_cost [DIMENSION ...]

Logistic regression, 16 chains, process time. "O(l d² + d³)" is the time of a chain's step over (l + d) d² + d³, in
nanoseconds: constant where the order holds.
"""

from __future__ import annotations

import sys
import warnings
from itertools import product

import numpy as np
import torch

from benchmarks.problems.coefficients import logistic, with_intercept
from benchmarks.tables import show
from benchmarks.timing import process_time

DIMENSIONS = (10, 20, 50, 100)
CHAINS, STEPS = 16, 8


def cost(dimension, *, adjusted, compiled, chains=CHAINS, steps=STEPS):
    """Seconds of process time to set up, and the fastest of the steps of all chains."""
    import pyro

    from pyro_manifold.infer import MSD

    rng = np.random.default_rng(0)
    design = with_intercept(rng, 10 * dimension, dimension) / dimension**0.5
    posterior = logistic("scaling", design, 1.0, rng.standard_normal(dimension), rng)
    pyro.set_rng_seed(0)
    kernel = MSD(posterior.pyro_model, step_size=0.1, metropolis=adjusted, jit_compile=compiled)

    def set_up():
        kernel.run = kernel.prepare(chains, 0, {"w": torch.zeros(chains, dimension)})
        kernel.run.advance()

    return process_time(set_up), min(process_time(kernel.run.advance) for _ in range(steps))


def rows(dimensions, versions):
    for (adjusted, compiled), d in product(versions, dimensions):
        version = f"{'adjusted' if adjusted else 'unadjusted'}{', compiled' if compiled else ''}"
        ready, step = cost(d, adjusted=adjusted, compiled=compiled)
        operations = 11 * d * d**2 + d**3
        each = step / CHAINS
        yield [version, d, f"{ready:.1f}", f"{1e6 * each:.0f}", f"{1e9 * each / operations:.2f}"]


def main(dimensions=DIMENSIONS, versions=((True, True), (False, True))):
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    columns = ("version", "d", "set-up s", "µs a chain's step", "O(l d² + d³): ns")
    show(columns, rows(dimensions, versions))


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or DIMENSIONS)
