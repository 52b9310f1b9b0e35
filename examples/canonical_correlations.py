"""Canonical correlations with intervals: exercises and bodies of twenty men.

The covariance of p variables x and q variables y is written by canonical correlations ρ and two orthonormal matrices,

    Cov(x) = A Aᵀ,  Cov(y) = B Bᵀ,  Cov(x, y) = A U diag(ρ) Wᵀ Bᵀ,   U, W uniform on V(p, k), V(q, k),

k the smaller of p and q, and ρ uniform on (0, 1). This is every covariance, so that the model adds no assumption to
classical canonical correlation analysis but its priors. With few data the largest sample correlation is too large, and
the bootstrap is larger still.

    python -m examples.canonical_correlations --output results

prints the summary, correlations beside those of statsmodels with a bootstrap, and how often intervals of both contain
known correlations of simulated data, and writes two pictures.
"""

import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from statsmodels.multivariate.cancorr import CanCorr

from examples import datasets, gallery
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

LIMITS = torch.tensor([0.03, 0.5, 0.97], dtype=torch.float64)
TRUTH = torch.tensor([0.6, 0.3, 0.0], dtype=torch.float64)


def factor(name, size):
    """Draw the Cholesky factor of a covariance matrix."""
    scales = pyro.sample(f"scales_{name}", dist.LogNormal(0.0, 0.5).expand([size]).to_event(1))
    return scales[..., None] * pyro.sample(f"cholesky_{name}", dist.LKJCholesky(size, 1.0))


def model(x, y):
    p, q = x.shape[-1], y.shape[-1]
    k = min(p, q)
    U = pyro.sample("U", StiefelUniform(p, k))
    W = pyro.sample("W", StiefelUniform(q, k))
    correlations = pyro.sample("correlations", dist.Uniform(0.0, 1.0).expand([k]).to_event(1))
    A, B = factor("x", p), factor("y", q)
    mean_x = pyro.sample("mean_x", dist.Normal(0.0, 1.0).expand([p]).to_event(1))
    mean_y = pyro.sample("mean_y", dist.Normal(0.0, 1.0).expand([q]).to_event(1))
    between = W * correlations[..., None, :]
    residual = torch.linalg.cholesky(torch.eye(q) - between @ between.mT)
    with pyro.plate("persons", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mean_x[..., None, :], scale_tril=A[..., None, :, :]), obs=x)
        standardised = torch.linalg.solve_triangular(A, (x - mean_x[..., None, :]).mT, upper=False)
        expected = mean_y[..., None, :] + (B @ between @ U.mT @ standardised).mT
        pyro.sample("y", dist.MultivariateNormal(expected, scale_tril=(B @ residual)[..., None, :, :]), obs=y)


def load():
    """Return standardised bodies ``(20, 3)`` and exercises ``(20, 3)``, and the names of both."""
    x, y, *names = datasets.exercises()
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    return (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0), *names


def classical(x, y):
    """Return the sample correlations of data ``(..., n, p)`` and ``(..., n, q)``, largest first."""
    bases = [torch.linalg.qr(z - z.mean(-2, keepdim=True)).Q for z in (x, y)]
    return torch.linalg.svdvals(bases[0].mT @ bases[1])


def bootstrap(x, y, count=2_000):
    """Return sample correlations of persons drawn with replacement, ``(count, k)``."""
    rows = torch.randint(len(x), (count, len(x)))
    return classical(x[rows], y[rows])


def posterior(x, y, draws):
    mcmc = MCMC(OHMC(model), draws, draws, num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    return mcmc


def largest_first(mcmc):
    return mcmc.get_samples()["correlations"].sort(-1, descending=True).values


def simulated(n):
    """Return data of known correlations `TRUTH`, ``(n, 3)`` each."""
    x = torch.randn(n, 3)
    return x, TRUTH * x + (1 - TRUTH**2).sqrt() * torch.randn(n, 3)


def coverage(count, n, draws):
    """Return limits of the largest correlation by both methods in simulated data, ``(count, 2, 3)``."""
    found = []
    for _ in range(count):
        x, y = simulated(n)
        both = largest_first(posterior(x, y, draws)), bootstrap(x, y)
        found.append(torch.stack([each[:, 0].quantile(LIMITS) for each in both]))
    return torch.stack(found)


def report(x, y, mine, again):
    print("\ncorrelation: posterior, statsmodels, bootstrap")
    found = CanCorr(y.numpy(), x.numpy())
    for k, value in enumerate(found.cancorr):
        cells = [
            "{:.2f} [{:.2f}, {:.2f}]".format(each[:, k].mean(), *each[:, k].quantile(LIMITS[::2]))
            for each in (mine, again)
        ]
        print(f"{k + 1}: {cells[0]}   {value:.2f}   {cells[1]}")
    print(found.corr_test().stats)


def report_of_coverage(limits):
    inside = (limits[..., 0] < TRUTH[0]) & (TRUTH[0] < limits[..., 2])
    for k, name in enumerate(("posterior", "bootstrap")):
        share, width = inside[:, k].double().mean(), (limits[:, k, 2] - limits[:, k, 0]).mean()
        print(f"{name}: {100 * share:.0f} % of {len(limits)} intervals contain {TRUTH[0]:.1f}, mean width {width:.2f}")


def figure(mine, again, sample):
    fig, axes = plt.subplots(1, mine.shape[-1], figsize=(11, 3.2), sharex=True)
    for k, ax in enumerate(axes):
        for values, colour, label in ((mine, "#0072B2", "posterior"), (again, "#D55E00", "bootstrap")):
            ax.hist(values[:, k].numpy(), np.linspace(0, 1, 51), density=True, alpha=0.55, color=colour, label=label)
        ax.axvline(float(sample[k]), color="black", lw=1, ls="--", label="sample")
        ax.set(title=f"canonical correlation {k + 1}", yticks=[], xlim=(0, 1))
        ax.spines[["top", "right", "left"]].set_visible(False)
    axes[0].legend(frameon=False, loc="upper left")
    fig.tight_layout()
    return fig


def figure_of_coverage(limits):
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.2), sharex=True, sharey=True)
    for k, (ax, name) in enumerate(zip(axes, ("posterior", "bootstrap"), strict=True)):
        low, middle, high = limits[limits[:, k, 1].argsort(), k].unbind(-1)
        missed = (low > TRUTH[0]) | (high < TRUTH[0])
        colours = np.where(missed.numpy(), "#D55E00", "0.6")
        ax.vlines(range(len(low)), low, high, color=colours, lw=1.5)
        ax.plot(middle, ".", color="black", ms=3)
        ax.axhline(float(TRUTH[0]), color="#0072B2", lw=1)
        ax.set(title=f"{name}: 94 % intervals of simulated data", xlabel="data set", ylim=(0, 1))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("largest correlation")
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=2_000, warmup="as many")
    parser.add_argument("--simulated", type=int, default=50, help="data sets of known correlations")
    arguments = gallery.begin(parser, argv)

    x, y, *_ = load()
    mcmc = posterior(x, y, arguments.draws)
    mcmc.summary(max_rows=20)
    mine, again, sample = largest_first(mcmc), bootstrap(x, y), classical(x, y)
    report(x, y, mine, again)
    limits = coverage(arguments.simulated, len(x), arguments.draws // 4)
    report_of_coverage(limits)
    pictures = {"": figure(mine, again, sample), "_coverage": figure_of_coverage(limits)}
    gallery.write(arguments.output, {f"canonical_correlations{part}": each for part, each in pictures.items()})
    return mine, again, sample, limits


if __name__ == "__main__":
    main()
