"""Number of chains of adjusted MSD that stay where they start, as a step that suits the posterior is refused there.

    python -m benchmarks.accuracy.msd.starts [--posteriors logistic Poisson] [--chains 256] [--short]

A chain is stuck if it accepts fewer than 2 % of 100 trajectories after 50 of warm-up; 256 chains.
"""

import warnings
from functools import partial
from itertools import product

import numpy as np
from pyro.infer.autoguide.initialization import init_to_uniform

from benchmarks.peers import pyro_manifold
from benchmarks.problems.coefficients import POSTERIORS
from benchmarks.study import option, read, switch
from benchmarks.tables import show

STEPS = ((0.5, 3), (0.25, 4), (0.1, 4))
CHAINS, WARMUP, DRAWS = 256, 50, 100


def stuck(posterior, radius, step_size, num_steps, chains=CHAINS):
    """The share of chains that are stuck, from starts uniform in (-radius, radius)."""
    options = {"metropolis": True, "step_size": step_size, "num_steps": num_steps, "persistence": 0.5}
    options |= {"adapt_step_size": False, "init_strategy": partial(init_to_uniform, radius=radius)}
    run = pyro_manifold(posterior, chains=chains, warmup=WARMUP, draws=DRAWS, kernel="MSD", **options)
    return float(np.mean([rate < 0.02 for rate in run.figures["acceptance"]]))


def rows(names, radii, steps, chains):
    for name, radius, (step_size, num_steps) in product(names, radii, steps):
        share = stuck(POSTERIORS[name], radius, step_size, num_steps, chains)
        yield [name, radius, step_size, num_steps, f"{100 * share:.1f} %"]


def main(argv=None):
    posteriors, short = (
        option(["logistic", "Poisson"], choices=POSTERIORS),
        switch("one step size"),
    )
    arguments = read(__doc__, argv, posteriors=posteriors, radii=[2.0, 0.1], chains=CHAINS, short=short)
    warnings.filterwarnings("ignore")
    found = rows(arguments.posteriors, arguments.radii, STEPS[:1] if arguments.short else STEPS, arguments.chains)
    show(("posterior", "starts within", "ε", "steps", "stuck"), found)


if __name__ == "__main__":
    main()
