"""Time of a training step on leukemia, 14,260 latent dimensions, beside Pyro's low-rank guide.

    python -m benchmarks.variational.step_cost [RANK [ROUNDS]]

Rounds of 30 steps go in turn through the methods, and the fastest round of each counts, in milliseconds of one core.
"""

from __future__ import annotations

import sys

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO

from benchmarks.tables import table
from benchmarks.timing import process_time
from benchmarks.variational import problems
from benchmarks.variational.methods import FAMILIES, METHODS, STEPS, VAFC

ROUNDS, STEPS_A_ROUND = 10, 30


def trainer(name, rank, data):
    """A function that makes a round of steps and returns the milliseconds of one."""
    method = METHODS[name]
    guide = method.guide(problems.horseshoe, rank)
    optimiser = method.optimiser(min(method.step_sizes))
    svi = SVI(problems.horseshoe, guide, optimiser, Trace_ELBO())
    scope = {"params": {}, "constraints": {}}  # every method has parameters of its own

    def run():
        with pyro.get_param_store().scope(scope):
            return 1e3 * process_time(lambda: svi.step(*data), STEPS_A_ROUND)

    return run


def main(rank=4, rounds=ROUNDS):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    split = problems.leukemia_split()
    names = [VAFC, *(f"{family} {steps}" for family in FAMILIES for steps in STEPS)]
    trainers = {name: trainer(name, rank, (split.x_train, split.y_train)) for name in names}
    times = {name: [] for name in names}
    for _ in range(rounds):
        for name, run in trainers.items():
            times[name].append(run())
    best = {name: min(values) for name, values in times.items()}
    rows = [[name, f"{value:.2f}", f"{value / best[VAFC]:.2f}"] for name, value in best.items()]
    print(table(("method", "ms a step", "to VAFC"), rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
