"""Number of chains of adjusted MSD that stay where they start, as a step that suits the posterior is refused there.

    python -m benchmarks.accuracy.msd.starts [--posteriors logistic Poisson] [--chains 256] [--short]

A chain is stuck if it accepts fewer than 2 % of 100 trajectories after 50 of warm-up; 256 chains.
"""

import argparse
import warnings
from functools import partial
from itertools import product

import numpy as np

from benchmarks.peers import pyro_manifold
from benchmarks.problems.coefficients import POSTERIORS
from benchmarks.tables import show

STEPS = ((0.5, 3), (0.25, 4), (0.1, 4))
CHAINS, WARMUP, DRAWS = 256, 50, 100


def stuck(posterior, radius, step_size, num_steps, chains=CHAINS):
    """The share of chains that are stuck, from starts uniform in (-radius, radius)."""
    from pyro.infer.autoguide.initialization import init_to_uniform

    options = {"metropolis": True, "step_size": step_size, "num_steps": num_steps, "persistence": 0.5}
    options |= {"adapt_step_size": False, "init_strategy": partial(init_to_uniform, radius=radius)}
    run = pyro_manifold(posterior, chains=chains, warmup=WARMUP, draws=DRAWS, kernel="MSD", **options)
    return float(np.mean([rate < 0.02 for rate in run.figures["acceptance"]]))


def rows(names, radii, steps, chains):
    for name, radius, (step_size, num_steps) in product(names, radii, steps):
        share = stuck(POSTERIORS[name], radius, step_size, num_steps, chains)
        yield [name, radius, step_size, num_steps, f"{100 * share:.1f} %"]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", nargs="+", choices=POSTERIORS, default=["logistic", "Poisson"])
    parser.add_argument("--radii", type=float, nargs="+", default=[2.0, 0.1])
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--short", action="store_true", help="one step size, to see that it runs")
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    found = rows(arguments.posteriors, arguments.radii, STEPS[:1] if arguments.short else STEPS, arguments.chains)
    show(("posterior", "starts within", "ε", "steps", "stuck"), found)


if __name__ == "__main__":
    main()
