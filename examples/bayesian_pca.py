"""Bayesian PCA of the wine data with orthonormal loadings.

Classical PCA gives directions without uncertainty; factor analysis gives loadings that are not directions.
Here the loadings are an orthonormal 13×2 matrix with the uniform prior, so that the posterior shows how well
178 wines determine the two axes of the familiar picture. Each wine is

    y_i ~ N(0, U diag(s²) Uᵀ + σ² I),   U uniform on the Stiefel manifold V(13, 2),

with the latent scores integrated out (Tipping & Bishop 1999, with U constrained to be orthonormal). The Stiefel
manifold is the set of 13×2 matrices with orthonormal columns. OHMC moves U on it and s, σ in Pyro's unconstrained
space, in one trajectory.

The likelihood does not change when a column of U changes sign or the columns and their scales change places. The
initial values of all chains are the classical axes; summary, figure and file are of draws with common signs and order,
wherever chains have gone.

    python examples/bayesian_pca.py --output results

prints the summary and the shares of variance, and writes the picture of the documentation and the draws.
"""

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import arviz
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value
from sklearn.datasets import load_wine

from pyro_manifold.diagnostics import plot_biplot, plot_scree
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

RANK = 2
PROBABILITY = 0.94  # of the shortest intervals and of ellipses
PERCENT = f"{100 * PROBABILITY:.0f} %"


def model(y, rank):
    n = y.shape[-1]
    U = pyro.sample("loadings", StiefelUniform(n, rank))
    scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([rank]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("wines", len(y)):
        factor, diagonal = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(n)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), factor, diagonal), obs=y)


def load():
    """Return standardised measurements, their names, and the cultivar of each wine."""
    wine = load_wine()
    y = torch.as_tensor(wine.data, dtype=torch.float64)
    names = [name.replace("_", " ").removesuffix(" of diluted wines") for name in wine.feature_names]
    return (y - y.mean(0)) / y.std(0), names, torch.as_tensor(wine.target)


def principal_axes(y, rank):
    return torch.linalg.svd(y, full_matrices=False)[2][:rank].mT


def scores(y, samples):
    """Return the conditional means of the latent scores of each wine, for each draw: s² / (s² + σ²) · Uᵀy."""
    shrinkage = samples["scales"] ** 2 / (samples["scales"] ** 2 + samples["noise"].unsqueeze(-1) ** 2)
    return (y @ samples["loadings"]) * shrinkage.unsqueeze(-2)


def variance_shares(samples):
    """Share of the variance of a new wine along each axis, (s² + σ²) / (Σ s² + 13 σ²), for each draw."""
    noise = samples["noise"].unsqueeze(-1) ** 2
    total = (samples["scales"] ** 2).sum(-1, keepdim=True) + samples["loadings"].shape[-2] * noise
    return (samples["scales"] ** 2 + noise) / total


def interval(draws):
    """Posterior mean and the two ends of the shortest interval, of ``(chains, draws)``."""
    with arviz.rc_context({"stats.ci_prob": PROBABILITY}):  # for ArviZ before 1 and since
        return float(draws.mean()), *arviz.hdi(draws.flatten().numpy()).tolist()


def plot_intervals(loadings, names, ax):
    """Loadings by axis, the variables in the order of axis 1."""
    order = loadings[..., 0].mean((0, 1)).argsort().tolist()
    for axis, colour in enumerate(("#333333", "#CC79A7")):
        for place, row in enumerate(order):
            mean, low, high = interval(loadings[..., row, axis])
            height = place + (0.17, -0.17)[axis]
            label = f"axis {axis + 1}" if place == 0 else None
            ax.plot([low, high], [height, height], color=colour, lw=1.5)
            ax.plot(mean, height, "o", color=colour, ms=4, label=label)
    ax.axvline(0, color="0.8", lw=1, zorder=0)
    ax.set_yticks(range(len(names)), [names[row] for row in order])
    ax.set(xlabel="loading", title=f"Loadings, shortest {PERCENT} intervals")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right")


def figure(y, names, cultivar, samples):
    """Scores and loadings, loadings with intervals, and scales, of aligned draws ``(chains, draws, ...)``."""
    fig = plt.figure(figsize=(8, 9), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=[1.5, 1])
    biplot, scree = above.subplots(1, 2, width_ratios=[3.4, 1])
    groups = [f"cultivar {kind + 1}" for kind in cultivar.tolist()]
    plot_biplot(samples["loadings"], scores(y, samples), names, groups, prob=PROBABILITY, ax=biplot)
    biplot.set(xlabel="score on axis 1", ylabel="score on axis 2")
    biplot.set_title(f"{len(y)} wines and {len(names)} measurements", pad=24)
    plot_scree(samples["scales"], samples["noise"], ["axis 1", "axis 2"], prob=PROBABILITY, ax=scree)
    scree.set(xlabel="")
    scree.margins(x=0.4)
    plot_intervals(samples["loadings"], names, below.subplots())
    return fig


def report(samples):
    """Print the share of variance of each axis and of both."""
    shares = variance_shares(samples)
    for name, draws in (("axis 1", shares[..., 0]), ("axis 2", shares[..., 1]), ("both axes", shares.sum(-1))):
        mean, low, high = interval(draws)
        limits = f"shortest {PERCENT} interval {100 * low:.1f} % to {100 * high:.1f} %"
        print(f"{name}: {100 * mean:.1f} % of the variance, {limits}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--num-samples", type=int, default=2000)
    parser.add_argument("--warmup-steps", type=int, default=500)
    parser.add_argument("--num-chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(arguments.seed)
    y, names, cultivar = load()
    initial = init_to_value(values={"loadings": principal_axes(y, RANK)})
    mcmc = MCMC(
        OHMC(model, init_strategy=initial),
        num_samples=arguments.num_samples,
        warmup_steps=arguments.warmup_steps,
        num_chains=arguments.num_chains,
    )
    mcmc.run(y, RANK)
    mcmc.summary()
    samples = mcmc.get_samples(group_by_chain=True, align=True)
    report(samples)

    arguments.output.mkdir(parents=True, exist_ok=True)
    idata = mcmc.to_inferencedata(
        align=True,
        coords={"measurement": names, "axis": range(1, RANK + 1)},
        dims={"loadings": ["measurement", "axis"], "scales": ["axis"]},
    )
    idata.to_netcdf(str(arguments.output / "bayesian_pca.nc"), engine="h5netcdf")
    picture = figure(y, names, cultivar, samples)
    picture.savefig(arguments.output / "bayesian_pca.png", dpi=150)
    plt.close(picture)
    print(f"Wrote {arguments.output / 'bayesian_pca.png'} and {arguments.output / 'bayesian_pca.nc'}.")
    return mcmc


if __name__ == "__main__":
    main()
