"""Tall orthonormal matrices: a leapfrog step beside its products of matrices, and effective draws beside NumPyro's.

python -m benchmarks.speed.tall                              steps, four minutes
python -m benchmarks.speed.tall --shape 1000 10 --chains 4   steps of one shape
python -m benchmarks.speed.tall --draws --shape 1000 10      effective draws in place of steps, some minutes
"""

import os
import time
import warnings

import numpy as np
import pyro
import torch

from benchmarks.estimates import summary
from benchmarks.machine import confine, machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.problem import Problem
from benchmarks.study import option, read, switch
from benchmarks.tables import formatted, show
from benchmarks.timing import best_time
from pyro_manifold.compiled.native import compile_loop
from pyro_manifold.infer import OHMC

SHAPES = ((200, 5), (1000, 10), (3000, 10), (10000, 20))
CHAINS, WARMUP, DRAWS = 4, 200, 300
STEPS, SECONDS = 20, 0.5
PREFACE = """\
Milliseconds of processor time of a leapfrog step of one chain, on a matrix Langevin distribution with singular values
n to 3n, without the draw of momenta and the Metropolis decision: by the steps without native code, and by native code.
Products are those of a step, 16np² operations, in native code and by torch's matrix library: Xᵀr, rᵀr, X by p×2p and
two of n×p by p×p for the drift, XᵀG and one of n×p by p×p for the kick. The ratio is of the native step to the native
products.
"""
RATES = f"""\
Smallest effective sample size a second, of entries of the first five rows and of products of columns of F and X, in
{CHAINS} chains of {WARMUP} + {DRAWS} iterations. Each figure is from a single run in a process of its own; seconds
hold all but imports. NumPyro's NUTS is over the polar factor, with chains together or one by one, whichever is faster.
"""


def langevin(n, p):
    random = np.random.default_rng(0)
    F = np.linalg.qr(random.standard_normal((n, p)))[0] * np.linspace(n, 3 * n, p)
    T = torch.tensor(F)

    def log_density(X, v, xp):
        return ((T if xp is torch else F) * X).sum()

    entries = {f"X[{i},{j}]": (lambda X, v, i=i, j=j: X[..., i, j]) for i in range(5) for j in range(p)}
    along = {f"F[{j}]·X[{j}]": (lambda X, v, j=j: (F[:, j] * X[..., j]).sum(-1)) for j in range(p)}
    return Problem(f"Langevin V({n},{p})", (n, p), 0, log_density, entries | along, dict, lambda X, v: (F, None))


PROBLEMS = {f"Langevin V({n},{p})": langevin(n, p) for n, p in SHAPES}


def processor_time(function, seconds):
    return best_time(function, seconds, time.process_time)


def seconds_of_a_step(problem, chains, native, column_masses=False, seconds=SECONDS, kernel=OHMC):
    """Processor time of a step of one chain: trajectories of many steps beside those of one."""
    pyro.set_rng_seed(0)
    fixed = {"step_size": 0.05 / problem.shape[0] ** 0.5, "num_steps": 1, "column_masses": column_masses}
    run = kernel(problem.pyro_model, adapt_step_size=False, adapt_mass_matrix=False, **fixed).prepare(chains, 0, None)
    move, settings = run.transitions[-1], run.tuning.settings(1)
    if native:
        run.policy.make(run.state)
        if move.graph.backend != "native":
            return float("nan")
    counts = 1, 1 + STEPS
    short, long = (
        processor_time(lambda n=n: move(run.state, settings._replace(num_steps=n), run.random), seconds) for n in counts
    )
    return (long - short) / STEPS / chains


def seconds_of_products(n, p, seconds=SECONDS):
    """Processor time of the products of a step, in native code and by torch."""
    both = torch.linalg.qr(torch.randn(1, n, 2 * p))[0]
    X, r = (part.contiguous() for part in both.chunk(2, -1))
    G = X.clone()

    def step(G, r, X):
        inner, square = X.mT @ r, r.mT @ r
        moved, kept = (X @ torch.cat([inner, square], -1)).chunk(2, -1)
        change = (r + moved) @ inner
        return [kept + change @ square, X @ (X.mT @ G)]

    loop = compile_loop(
        lambda G, r, X: [r.clone(), X.clone()], lambda G, _, __, r, X: step(G, r, X),
        lambda G, _, __, r, X: [r.sum((1, 2)), X.sum((1, 2))], 2, [G, r, X], 1,
    )  # fmt: skip
    short, long = (processor_time(lambda k=k: loop(k, G, r, X), seconds) for k in (1, 1 + STEPS))
    return (long - short) / STEPS, processor_time(lambda: step(G[0], r[0], X[0]), seconds)


def rows_of_steps(shapes, counts, seconds):
    for n, p in shapes:
        products, problem = seconds_of_products(n, p, seconds), langevin(n, p)
        for chains in counts:
            kinds = (False, False), (True, False), (True, True)  # native code, masses of columns
            steps = [seconds_of_a_step(problem, chains, *kind, seconds) for kind in kinds]
            milliseconds = formatted(".3f .3f .3f .3f .3f", *(1e3 * value for value in (*steps, *products)))
            yield [f"V({n},{p})", chains, *milliseconds, f"{steps[1] / products[0]:.2f}"]


def rate(problem, peer, options, limit=900):
    setting = Setting(peer, peer, CHAINS, WARMUP, DRAWS, options)
    values, figures = measure_apart("benchmarks.speed.tall:PROBLEMS", problem, setting, 1, limit)
    if values is None:
        return float("nan"), float("nan"), figures["failed"]
    found = summary(values)
    return found["ess_min"] / figures["seconds"], found["rhat"], figures["seconds"]


def rows_of_rates(shapes):
    for n, p in shapes:
        name = f"Langevin V({n},{p})"
        own, *others = (
            rate(name, peer, options)
            for peer, options in (
                ("pyro_manifold", {}),
                ("NumPyro", {}),
                ("NumPyro", {"chain_method": "sequential"}),
            )
        )
        theirs = max(others, key=lambda found: np.nan_to_num(found[0]))
        cells = [f"{x:.3g}" if isinstance(x, float) else x for found in (own, theirs) for x in found]
        yield [f"V({n},{p})", *cells, f"{own[0] / theirs[0]:.1f}"]


def main(argv=None):
    arguments = read(
        __doc__, argv, shape=option(None, "n and p, in place of all", type=int, nargs=2),
        chains=[1, 2, 4, 8], seconds=option(SECONDS, "of each measurement"),
        draws=switch("effective draws a second, in place of steps"),
    )  # fmt: skip
    warnings.filterwarnings("ignore")
    confine(1)
    os.environ["PYRO_MANIFOLD_NATIVE"] = "1"
    shapes = [tuple(arguments.shape)] if arguments.shape else SHAPES
    if arguments.draws:
        print(f"## Effective draws of tall matrices\n\n{machine(1)}\n\n{RATES}", flush=True)
        columns = ("ESS/s", "R-hat", "seconds")
        titles = ("matrix", *columns, *(f"NumPyro: {column}" for column in columns), "ratio")
        show(titles, rows_of_rates(shapes))
        return
    print(f"## A step on tall matrices\n\n{machine(1)}\n\n{PREFACE}", flush=True)
    times = ("without native code", "native", "native, masses of columns", "products", "products, torch", "ratio")
    show(("matrix", "chains", *times), rows_of_steps(shapes, arguments.chains, arguments.seconds))


if __name__ == "__main__":
    main()
