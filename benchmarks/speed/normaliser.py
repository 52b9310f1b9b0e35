"""Time of models of matrix Langevin data with an unknown parameter, on V(3,2) and one core.

    python -m benchmarks.speed.normaliser [--short]

The normaliser alone, value and gradient; then a value and gradient of whole models of 98 orientations as a kernel calls
them, for 1 and 16 chains: one F for all, and one for each of 4 groups; then whole runs of OHMC with 16 chains of 400
warm-up iterations and 400 draws: the groups, and a mixture of two components over 200 orientations with enumerated
assignments. ``--short`` leaves the runs out.
"""

import warnings

import pyro
import torch

from benchmarks.problems.orientations import data, grouped, mixture, plate
from benchmarks.study import read, switch
from benchmarks.tables import show
from benchmarks.timing import best_time, stopwatch
from pyro_manifold.distributions import log_langevin_normaliser
from pyro_manifold.infer import MCMC, OHMC

CHAINS, ITERATIONS = 16, 400


def normaliser_time(count=64):
    F = 3 * torch.randn(count, 3, 2)

    def call():
        leaf = F.clone().requires_grad_()
        torch.autograd.grad(log_langevin_normaliser(leaf).sum(), leaf)

    return best_time(call, 1.0)


def gradient_time(model, arguments, chains):
    run = OHMC(model).prepare(chains, 1, None, *arguments)
    values = [value.clone() for value in run.problem.initial_values.values()]
    with pyro.validation_enabled(False):
        return best_time(lambda: run.problem.batched.graph(*values), 1.0)


def run_time(model, arguments):
    mcmc = MCMC(OHMC(model), num_samples=ITERATIONS, warmup_steps=ITERATIONS, num_chains=CHAINS, disable_progbar=True)
    with stopwatch() as times:
        mcmc.run(*arguments)
    return times


def rows(short):
    yield "normaliser of 64 F, value and gradient", f"{1e3 * normaliser_time():.2f} ms"
    for name, model, arguments in (("one F", plate, data(98, 1)[:1]), ("F[group]", grouped, data(98, 4))):
        for chains in (1, CHAINS):
            milliseconds = 1e3 * gradient_time(model, arguments, chains)
            yield f"{name}, 98 data, {chains} chains: a gradient", f"{milliseconds:.2f} ms"
    runs = ("F[group], 98 data", grouped, data(98, 4)), ("mixture, 200 data", mixture, data(200, 2)[:1])
    for name, model, arguments in () if short else runs:
        times = run_time(model, arguments)
        figures = f"{times['seconds']:.0f} s ({times['cpu_seconds']:.0f} s of process time)"
        yield f"{name}, {CHAINS} chains × {2 * ITERATIONS}: a run", figures


def main(argv=None):
    short = read(__doc__, argv, short=switch("without the runs")).short
    warnings.filterwarnings("ignore")
    pyro.set_rng_seed(0)
    show(("what", "time"), rows(short))


if __name__ == "__main__":
    main()
