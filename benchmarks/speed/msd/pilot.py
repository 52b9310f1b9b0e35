"""Step size and number of steps for the adjusted MSD of `benchmarks.speed.msd.collinear`.

    python -m benchmarks.speed.msd.pilot "collinear logistic"

64 chains of 100 draws with each pair; what counts is the smallest effective number of draws for each step.
"""

import sys

import numpy as np

from benchmarks.estimates import summary
from benchmarks.measure import Setting, measure
from benchmarks.problems.coefficients import POSTERIORS
from benchmarks.tables import formatted, show

CHAINS, WARMUP, DRAWS = 64, 40, 100
GRID = [(0.4, 4), (0.5, 3), (0.6, 3), (0.7, 2), (0.8, 2), (1.0, 2), (1.0, 1)]


def rows(posterior, grid, chains, draws, warmup):
    for step_size, num_steps in grid:
        options = {"step_size": step_size, "num_steps": num_steps, "persistence": 0.0, "metropolis": True}
        options |= {"adapt_step_size": False}
        setting = Setting("MSD", "pyro_manifold", chains, warmup, draws, {"kernel": "MSD", **options})
        values, figures = measure(posterior, setting)
        smallest = summary(values)["ess_min"] / (chains * draws)
        shares = np.mean(figures["acceptance"]), smallest, smallest / num_steps
        yield [step_size, num_steps, *formatted(".2f .2f .2f", *shares)]


def main(name, grid=GRID, chains=CHAINS, draws=DRAWS, warmup=WARMUP):
    columns = ("ε", "steps", "acceptance", "ESS a draw", "ESS a step")
    show(columns, rows(POSTERIORS[name], grid, chains, draws, warmup))


if __name__ == "__main__":
    main(*sys.argv[1:])
