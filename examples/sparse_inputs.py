"""A Gaussian process of ten inputs of which two matter, and BoTorch's model of this kind fitted by `OHMC`.

Bayesian optimisation fits a function to few values at points with many inputs, most of which hardly matter. The sparse
prior of Eriksson & Jankowiak (2021) lets the data choose the inputs: a Matérn kernel whose length scale ℓ_i of input i
follows from

    1 / ℓ_i² = τ λ_i,   τ ~ HalfCauchy(0.1),   λ_i ~ HalfCauchy(1).

BoTorch fits this model by NUTS: until its release 0.17 by that of Pyro, since then by that of NumPyro. `fit` does it by
`OHMC`, for both.

    python -m examples.sparse_inputs --output results

prints the summary, the relevance of each input, and errors of predictions compared with those of BoTorch's usual model,
fitted at its posterior mode, and writes a picture.
"""

import math
from functools import partial

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch

from examples import gallery
from pyro_manifold.infer import MCMC, OHMC

LEAST_NOISE = 1e-4  # variance, as in BoTorch


def matern(x, z, relevance, variance):
    """Return the covariances ``(len(x), len(z))`` of a Matérn process of smoothness 5/2."""
    squares = ((x.unsqueeze(1) - z) ** 2 * relevance).sum(-1)
    distance = (5 * squares + 1e-20).sqrt()  # the root has no gradient at 0
    return variance * (1 + distance + distance**2 / 3) * torch.exp(-distance)


def model(x, y, noises=None):
    """The model of BoTorch's ``SaasPyroModel``; ``noises`` are known variances of the noise."""
    one = x.new_ones(())  # with dtype and device of the data
    mean = pyro.sample("mean", dist.Normal(0 * one, one))
    variance = pyro.sample("variance", dist.Gamma(2 * one, 0.15 * one))
    noise = LEAST_NOISE + pyro.sample("noise", dist.Gamma(0.9 * one, 10 * one)) if noises is None else noises
    overall = pyro.sample("overall", dist.HalfCauchy(0.1 * one))
    own = pyro.sample("own", dist.HalfCauchy(one).expand([x.shape[-1]]).to_event(1))
    relevance = pyro.deterministic("relevance", overall * own)
    covariance = matern(x, x, relevance, variance) + noise * torch.eye(len(x)).to(x)
    pyro.sample("y", dist.MultivariateNormal(mean.expand(len(x)), covariance), obs=y)


def conditional(x, y, new, noises, draw):
    """Return mean and variance of the function at new points, given one draw; ``noises`` as in the model."""
    kernel = partial(matern, x, relevance=draw["relevance"], variance=draw["variance"])
    noise = LEAST_NOISE + draw["noise"] if noises is None else noises.reshape(-1)
    lower = torch.linalg.cholesky(kernel(x) + noise * torch.eye(len(x)).to(x))
    across = torch.linalg.solve_triangular(lower, kernel(new), upper=False)
    residual = torch.linalg.solve_triangular(lower, (y - draw["mean"]).unsqueeze(-1), upper=False)
    return draw["mean"] + (across.mT @ residual).squeeze(-1), draw["variance"] - across.square().sum(0)


def predicted(mcmc, x, y, new, noises=None):
    """Return draws ``(chains · draws, points)`` of the function at new points, independent between points."""
    means, variances = torch.vmap(partial(conditional, x, y, new, noises))(mcmc.get_samples(deterministic=True))
    return torch.normal(means, variances.clamp(min=0).sqrt())


def branin(x):
    """Branin's function of the first two inputs, scaled to [0, 1] (Dixon & Szegő 1978)."""
    a, b = 15 * x[:, 0] - 5, 15 * x[:, 1]
    return (b - 5.1 / (4 * math.pi**2) * a**2 + 5 / math.pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * a.cos() + 10


def hartmann(x):
    """Hartmann's function of the first six inputs (Dixon & Szegő 1978)."""
    heights = torch.tensor([1.0, 1.2, 3.0, 3.2])
    widths = torch.tensor(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    )
    places = 1e-4 * torch.tensor(
        [
            [1312.0, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )  # fmt: skip
    return -(heights * torch.exp(-(widths * (x[:, None, :6] - places) ** 2).sum(-1))).sum(-1)


FUNCTIONS = {"Branin": branin, "Hartmann": hartmann}
NUMBER_OF_INPUTS, POINTS = 10, 40


def points(count, seed):
    """Return points ``(count, 10)`` spread evenly over the unit cube."""
    return torch.quasirandom.SobolEngine(NUMBER_OF_INPUTS, scramble=True, seed=seed).draw(count).to(torch.float64)


def design(function, count=POINTS, new=500):
    """Return points, the standardised values of a function there, and the same at new points."""
    x, others = points(count, 0), points(new, 1)
    y, values = FUNCTIONS[function](x), FUNCTIONS[function](others)
    return x, (y - y.mean()) / y.std(), others, (values - y.mean()) / y.std()


def fit(gp, num_samples=256, warmup_steps=512, num_chains=4, thinning=16, disable_progbar=True, **options):
    """Fit BoTorch's ``SaasFullyBayesianSingleTaskGP`` by `OHMC`, in place of ``fit_fully_bayesian_model_nuts``.

    Args:
        gp: the model, without warping of inputs; its draws are loaded into it.
        num_samples: draws of each chain.
        warmup_steps: of each chain.
        num_chains: chains, sampled at once.
        thinning: every so many draws of all chains the model gets one.
        disable_progbar: whether to show no progress.
        options: of `OHMC`; the seed is that of ``pyro.set_rng_seed``.

    Returns:
        The finished `MCMC`, for summaries and diagnostics.
    """
    from botorch.models.fully_bayesian import SaasPyroModel

    data = getattr(gp, "pyro_model", None)
    if type(data) is not SaasPyroModel or getattr(data, "use_input_warping", False):
        raise ValueError(
            f"fit: gp is a {type(gp).__name__}, expected a SaasFullyBayesianSingleTaskGP without input warping; fit "
            "others by fit_fully_bayesian_model_nuts."
        )
    if not isinstance(thinning, int) or not 1 <= thinning <= num_samples * num_chains:
        raise ValueError(f"fit: thinning={thinning!r}, expected an integer from 1 to {num_samples * num_chains}.")
    kernel = OHMC(model, **options)
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=disable_progbar)
    mcmc.run(data.train_X, data.train_Y.squeeze(-1), data.train_Yvar)
    draws = {name: value[::thinning] for name, value in mcmc.get_samples(deterministic=True).items()}
    samples = {"mean": draws["mean"], "outputscale": draws["variance"], "lengthscale": draws["relevance"].rsqrt()}
    gp.load_mcmc_samples(samples | ({"noise": LEAST_NOISE + draws["noise"]} if "noise" in draws else {}))
    gp.eval()
    return mcmc


def posterior_mode(x, y, new):
    """Return mean and standard deviation at new points by BoTorch's ``SingleTaskGP``, at the posterior mode."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    gp = SingleTaskGP(x, y.unsqueeze(-1), outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    with torch.no_grad():
        found = gp.posterior(new)
    return found.mean.squeeze(-1), found.variance.squeeze(-1).sqrt()


def scores(values, low, middle, high):
    """Return the root mean square error of predictions, and the share of values inside their intervals."""
    inside = (low <= values) & (values <= high)
    return float((middle - values).square().mean().sqrt()), float(inside.double().mean())


def figure(relevance, values, low, middle, high):
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    lower, centre, upper = np.quantile(relevance.numpy(), [0.05, 0.5, 0.95], axis=0)
    rows = np.arange(1, relevance.shape[-1] + 1)
    colours = ["#D55E00" if row <= 2 else "#0072B2" for row in rows]
    left.hlines(rows, lower, upper, color=colours, lw=2)
    left.scatter(centre, rows, color=colours, s=20)
    left.set_xscale("log")
    left.set(xlabel="relevance 1 / ℓ², 90 % interval", ylabel="input", ylim=(10.5, 0.5), yticks=rows)
    right.errorbar(values, middle, [middle - low, high - middle], fmt="o", ms=3, lw=0.6, color="#0072B2", alpha=0.5)
    ends = [float(values.min()), float(values.max())]
    right.plot(ends, ends, color="black", lw=1)
    right.set(xlabel="value of the function at a new point", ylabel="prediction, 90 % interval")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def main(argv=None):
    arguments = gallery.begin(gallery.options(__doc__, 1_000, "500"), argv)
    x, y, new, values = design("Branin")
    mcmc = MCMC(OHMC(model), arguments.draws, min(arguments.draws, 500), num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    mcmc.summary()
    relevance = mcmc.get_samples(deterministic=True)["relevance"]
    print("\ninput   median relevance")
    for i, median in enumerate(relevance.median(0).values, 1):
        print(f"{i:5d}   {median:.1e}")
    low, middle, high = predicted(mcmc, x, y, new).quantile(torch.tensor([0.05, 0.5, 0.95]), dim=0)
    mean, deviation = posterior_mode(x, y, new)
    found = {
        "OHMC, sparse inputs": scores(values, low, middle, high),
        "BoTorch, SingleTaskGP": scores(values, mean - 1.645 * deviation, mean, mean + 1.645 * deviation),
    }
    print("\n                        error   inside 90 % intervals")
    for name, (error, inside) in found.items():
        print(f"{name:22s} {error:6.2f}   {inside:.2f}")
    shown = slice(None, 100)
    pictures = {"sparse_inputs": figure(relevance, *(each[shown] for each in (values, low, middle, high)))}
    gallery.write(arguments.output, pictures)
    return mcmc, found


if __name__ == "__main__":
    main()
