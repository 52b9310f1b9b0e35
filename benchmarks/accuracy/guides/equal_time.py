"""ELBO of low-rank guides after the same time of one core: steps of `pyro_manifold.infer.SVI` beside Pyro's.

    python -m benchmarks.accuracy.guides.equal_time --seconds 1 4
    python -m benchmarks.accuracy.guides.equal_time --problems ionosphere --rates 0.01 0.03 0.1

Seconds are those of the processor and include tracing and compiling. Every fit has 8 particles, rank 4 and Adam with a
learning rate that falls to zero by half a cosine over the time; Pyro's guide gets the best of the three rates (by its
final ELBO), ours has the recommended 0.03 unless ``--rates`` names others. The ELBO is the mean over as many draws of
the final guide as 3 seconds allow, at most 100,000, averaged over seeds, with the standard error over these.
"""

import math
import statistics
import time
import warnings
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal

from benchmarks.papers.variational import problems, splines
from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold.infer import SVI
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from pyro_manifold.infer.svi import StepSizes
from pyro_manifold.optim import RiemannianAdam

PARTICLES, RANK, DRAWS, EVALUATION_SECONDS = 8, 4, 100_000, 3.0
RECOMMENDED, RATES = 0.03, (0.01, 0.03, 0.1)


# ---- problems, as models whose particles can be in front -------------------------------------------------------------


def gaussian(law):
    x = pyro.sample("x", dist.Normal(torch.zeros(law.event_shape), 1.0).to_event(1).mask(False))
    pyro.factor("law", law.log_prob(x))


def gaussian_data(dimensions):
    """A Gaussian whose covariance is a Wishart draw: no guide of low rank contains it."""
    random = torch.Generator().manual_seed(dimensions)
    root = torch.randn(dimensions, 2 * dimensions, generator=random) / (2 * dimensions) ** 0.5
    root = root * torch.linspace(0.3, 3.0, dimensions).unsqueeze(-1)
    loc = torch.randn(dimensions, generator=random)
    return (dist.MultivariateNormal(loc, root @ root.mT),)


def gaussian_of_rank():
    """A Gaussian that every guide here contains: the best ELBO is 0."""
    random = torch.Generator().manual_seed(0)
    factor = torch.linalg.qr(torch.randn(50, RANK, generator=random)).Q * torch.tensor([6.0, 4.5, 3.0, 2.0])
    scale = 0.25 ** torch.rand(50, generator=random)
    return (dist.LowRankMultivariateNormal(torch.randn(50, generator=random), factor, scale.square()),)


def logistic(x, y):
    b = pyro.sample("b", dist.Normal(torch.zeros(x.shape[-1]), splines.PRIOR_VARIANCE**0.5).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=(x * b).sum(-1)), obs=y)


def horseshoe(x, y):
    size = x.shape[-1]
    intercept = pyro.sample("intercept", dist.Normal(torch.zeros(()), splines.PRIOR_VARIANCE**0.5))
    tau = pyro.sample("tau", dist.HalfCauchy(torch.ones(())))
    scales = pyro.sample("scales", dist.HalfCauchy(torch.ones(size)).to_event(1))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(size), tau.unsqueeze(-1) * scales).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=intercept + (x * slopes).sum(-1)), obs=y)


def spline(x, y):
    """P-spline of `splines` with a random walk of second order as prior, and an unknown share of outliers."""
    smoothing = pyro.sample("smoothing", dist.HalfNormal(torch.ones(())))
    noise = pyro.sample("noise", dist.HalfNormal(torch.ones(())))
    outliers = pyro.sample("outliers", dist.Beta(torch.ones(()), 9.0))
    scale_tril = splines.SUMS * splines.random_walk_scales(smoothing).unsqueeze(-2)
    prior = dist.MultivariateNormal(torch.zeros(splines.COEFFICIENTS), scale_tril=scale_tril)
    coefficients = pyro.sample("coefficients", prior)
    with pyro.plate("rows", len(x)):
        mean = (x * coefficients).sum(-1)
        inner, outer = (dist.Normal(mean, size * noise).log_prob(y) for size in (1.0, splines.INFLATION))
        pyro.factor("y", torch.logaddexp(torch.log1p(-outliers) + inner, outliers.log() + outer))


def of_split(split):
    return split.x_train, split.y_train


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return tuple(problems.tensors(problems.with_ones((x - x.mean(0)) / x.std(0)), y))


PROBLEMS = {
    "Gaussian, 30": (gaussian, partial(gaussian_data, 30)),
    "Gaussian, 80": (gaussian, partial(gaussian_data, 80)),
    f"Gaussian of rank {RANK}, 50": (gaussian, gaussian_of_rank),
    "ionosphere": (logistic, lambda: of_split(problems.ionosphere_folds()[0])),
    "leukemia": (horseshoe, lambda: of_split(problems.leukemia_split())),
    "breast cancer": (logistic, breast_cancer),
    "P-spline, second differences": (spline, lambda: of_split(problems.spline_data()[0])),
}


# ---- methods ---------------------------------------------------------------------------------------------------------

PYROS_OWN = "Pyro's guide, Pyro's steps"
METHODS = {
    PYROS_OWN: (AutoLowRankMultivariateNormal, pyro.optim.Adam, pyro.infer.SVI),
    "Pyro's guide": (AutoLowRankMultivariateNormal, pyro.optim.Adam, SVI),
    **{
        f"Stiefel, {name}": (partial(AutoStiefelLowRankMultivariateNormal, path_derivative=path), RiemannianAdam, SVI)
        for name, path in (("path derivative", True), ("closed entropy", False))
    },
}


def fit(model, data, method, rate, seconds, seed):
    """The trained guide, and its number of steps."""
    guide_type, optimiser, infer = METHODS[method]
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide, optim = guide_type(model, rank=RANK), optimiser({"lr": rate})
    loss = Trace_ELBO(num_particles=PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    svi, sizes, steps = infer(model, guide, optim, loss), StepSizes(optim), 0
    start = time.process_time()
    while (spent := time.process_time() - start) < seconds:
        sizes.scale(0.5 * (1 + math.cos(math.pi * spent / seconds)))
        svi.step(*data)
        steps += 1
    return guide, steps


def elbo(model, guide, data):
    """Mean over draws of the guide, as many as there is time for."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.0}), Trace_ELBO(num_particles=PARTICLES))
    svi.step(*data)
    svi._steps.compile()
    losses, start = [], time.process_time()
    while len(losses) < DRAWS // PARTICLES and time.process_time() - start < EVALUATION_SECONDS:
        losses.append(svi.evaluate_loss(*data))
    return -statistics.fmean(losses)


def row(model, data, method, rates, seconds, seeds):
    """The best of the rates: the rate, the mean number of steps, the mean ELBO, and its standard error over seeds."""
    found = []
    for rate in rates:
        bounds, steps = [], []
        for seed in range(seeds):
            guide, count = fit(model, data, method, rate, seconds, seed)
            bounds.append(elbo(model, guide, data))
            steps.append(count)
        error = statistics.stdev(bounds) / seeds**0.5 if seeds > 1 else math.nan
        found.append((statistics.fmean(bounds), error, rate, statistics.fmean(steps)))
    return max(found)


def rows(names, budgets, rates, seeds):
    for name in names:
        model, load = PROBLEMS[name]
        data = load()
        for method in METHODS:  # imports and the like are not counted
            fit(model, data, method, RECOMMENDED, 1e-3, 0)
        for seconds in budgets:
            for method in METHODS:
                tried = RATES if method == PYROS_OWN else rates
                bound, error, rate, steps = row(model, data, method, tried, seconds, seeds)
                yield [name, seconds, method, rate, f"{steps:.0f}", f"{bound:.2f} ({error:.2f})"]


def main(argv=None):
    chosen = read(
        __doc__, argv, problems=option(list(PROBLEMS), choices=PROBLEMS), seconds=[1.0, 4.0], rates=[RECOMMENDED],
        seeds=2,
    )  # fmt: skip
    warnings.simplefilter("ignore")
    print(__doc__)
    head = ["problem", "seconds", "method", "rate", "steps", "ELBO"]
    show(head, rows(chosen.problems, chosen.seconds, chosen.rates, chosen.seeds))


if __name__ == "__main__":
    main()
