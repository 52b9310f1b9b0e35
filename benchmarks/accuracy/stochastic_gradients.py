"""Bias of stochastic-gradient kernels over step size and noise of the gradient, against exact values.

    python -m benchmarks.accuracy.stochastic_gradients [--short]

There are three tables. The first is the matrix Langevin distribution on V(3,2) with F = [[3,0],[0,1.5],[0,0]]: the mean
of tr FᵀX minus its true value. The second is a standard normal variable: its variance minus 1, next to the exact value
of the linear recursion. The third is a regression whose only noise is that of minibatches: the variance of the
posterior, by the order of the minibatches. All values have their Monte Carlo standard errors. The noise of the gradient
is Gaussian, independent at each step and for each chain, with the given standard deviation in each entry. Momenta lose
a fraction α = 0.1 in a step.
"""

from functools import partial

import pyro
import pyro.distributions as dist
import torch

from benchmarks.study import read, switch
from benchmarks.tables import show
from problems.monte_carlo import standard_error
from problems.noisy_gradients import exact_variance, gradient_noise
from problems.targets import LANGEVIN
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC, SGLD

FRICTION = 0.1
NOISES = (0.0, 1.0, 3.0)
WAYS = {
    "splitting": lambda kernel, model, ε, **options: kernel(model, step_size=ε, friction=FRICTION, **options),
    "euler": lambda kernel, model, ε, **options: kernel(
        model, step_size=ε, friction=FRICTION, integrator="euler", **options
    ),
    "SGLD": lambda kernel, model, ε, **options: SGLD(model, step_size=ε**2, **options),
}
"""Kernels by the time ε of a drift, which for SGLD is the root of its step size."""


def draws_of(kernel, chains, iterations):
    mcmc = MCMC(kernel, iterations, iterations // 2, num_chains=chains, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)


def bias(values, truth):
    return f"{float(values.mean()) - truth:+.3f} ± {standard_error(values):.3f}"


def steps_for(way, ε):
    """So many that a draw is about a time of 1 after another."""
    return max(1, round(1 / ε**2 if way == "SGLD" else 1 / ε))


def table_of(kernel, model, step_sizes, cell):
    """Print a row for each way and step size; ``cell(kernel, way, ε, noise)`` is its text for a noise."""
    rows = []
    for way, make in WAYS.items():
        for ε in step_sizes(way):
            options = {"num_steps": steps_for(way, ε), "minibatches": "independent", "per_chain_minibatches": True}
            made = [make(kernel, partial(model, noise), ε, **options) for noise in NOISES]
            cells = [cell(each, way, ε, noise) for each, noise in zip(made, NOISES, strict=True)]
            rows.append(["SGLD" if way == "SGLD" else f"{kernel.__name__}, {way}", ε, *cells])
    show(["kernel", "ε", *[f"noise {noise:g}" for noise in NOISES]], rows)


def on_matrices(chains, iterations):
    target = LANGEVIN["V(3,2)"]
    F, truth = torch.as_tensor(target.F), float(target.expectation()[0])

    def model(noise):
        X = pyro.sample("X", StiefelUniform(3, 2))
        pyro.factor("langevin", (F * X).sum())
        if noise:
            gradient_noise("X", X, noise)

    def cell(kernel, *_):
        return bias(target.statistic(draws_of(kernel, chains, iterations)["X"]), truth)

    print(f"## V(3,2), bias of the mean of tr FᵀX, {truth:.4f}\n")
    table_of(OSGHMC, model, lambda way: (0.1, 0.2, 0.4) if way == "SGLD" else (0.05, 0.1, 0.2, 0.4), cell)


def on_a_number(chains, iterations):
    def model(noise):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if noise:
            gradient_noise("x", x, noise)

    def cell(kernel, way, ε, noise):
        measured = bias(draws_of(kernel, chains, iterations)["x"].square(), 1.0)
        return f"{measured}, {exact_variance(way, ε, noise, FRICTION) - 1:+.3f}"

    print("\n## A standard normal variable, bias of its variance: measured, exact\n")
    table_of(SGHMC, model, lambda _: (0.1, 0.4, 0.8), cell)


def on_minibatches(chains, iterations):
    size, batch = 96, 8
    random = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=random).double()
    y = 0.5 * x + torch.randn(size, generator=random).double()
    precision = 1 + float(x.square().sum())

    def model():
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", size, subsample_size=batch) as rows:
            pyro.sample("y", dist.Normal(slope * x[rows], 1.0), obs=y[rows])

    print(f"\n## A slope from {size} data, {batch} a step: variance by the exact one, less 1\n")
    rows = []
    for ε in (0.01, 0.02, 0.04):
        cells = []
        for order in ("independent", "shuffled", "symmetric"):
            options = {"num_steps": 2 * size // batch, "minibatches": order, "per_chain_minibatches": True}
            kernel = WAYS["splitting"](SGHMC, model, ε, **options)
            draws = draws_of(kernel, chains, iterations)["slope"]
            mean = float((x * y).sum()) / precision
            cells.append(bias((draws - mean).square() * precision, 1.0))
        rows.append([ε, *cells])
    show(["ε", "independent", "shuffled", "symmetric"], rows)


def main(argv=None):
    short = read(__doc__, argv, short=switch("a few chains, to see that it runs")).short
    chains, iterations = (32, 10) if short else (1024, 100)
    pyro.set_rng_seed(0)
    print(f"{chains} chains of {iterations} draws; torch {torch.__version__}, float64.\n")
    on_matrices(chains, iterations)
    on_a_number(chains, iterations)
    on_minibatches(chains, iterations)


if __name__ == "__main__":
    main()
