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
"""

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value
from sklearn.datasets import load_wine

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

RANK = 2


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
    return (y - y.mean(0)) / y.std(0), wine.feature_names, torch.as_tensor(wine.target)


def principal_axes(y, rank):
    return torch.linalg.svd(y, full_matrices=False)[2][:rank].mT


def scores(y, samples):
    """Return the conditional means of the latent scores of each wine, for each draw: s² / (s² + σ²) · Uᵀy."""
    shrinkage = samples["scales"] ** 2 / (samples["scales"] ** 2 + samples["noise"].unsqueeze(-1) ** 2)
    return (y @ samples["loadings"]) * shrinkage.unsqueeze(-2)


def figure(y, names, cultivar, samples):
    fig, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2), width_ratios=[1.15, 1])
    colours = ["#0072B2", "#D55E00", "#009E73"]
    draws = scores(y, samples)
    thinned = draws[:: max(1, len(draws) // 60)]
    for kind in range(3):
        members = cultivar == kind
        cloud = thinned[:, members].reshape(-1, 2)
        left.scatter(*cloud.T, s=2, alpha=0.06, color=colours[kind], linewidths=0)
        left.scatter(*draws.mean(0)[members].T, s=14, color=colours[kind], label=f"cultivar {kind + 1}")
    left.set(xlabel="score on axis 1", ylabel="score on axis 2", title="Wines: posterior means over posterior draws")
    left.legend(frameon=False)

    order = samples["loadings"].mean(0)[:, 0].argsort()
    positions = torch.arange(len(names))
    for axis, shift in ((0, 0.15), (1, -0.15)):
        loading = samples["loadings"][:, order, axis]
        low, middle, high = loading.quantile(torch.tensor([0.03, 0.5, 0.97], dtype=loading.dtype), dim=0)
        right.errorbar(
            middle, positions + shift, xerr=torch.stack([middle - low, high - middle]), fmt="o", ms=4,
            color=("#333333", "#CC79A7")[axis], label=f"axis {axis + 1}",
        )  # fmt: skip
    right.axvline(0, color="0.8", lw=1, zorder=0)
    right.set_yticks(positions, [names[i].replace("_", " ") for i in order])
    right.set(xlabel="loading", title="Orthonormal loadings, 94 % intervals")
    right.legend(frameon=False)
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--num-samples", type=int, default=1000)
    parser.add_argument("--warmup-steps", type=int, default=500)
    parser.add_argument("--num-chains", type=int, default=1)
    arguments = parser.parse_args(argv)

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
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

    arguments.output.mkdir(parents=True, exist_ok=True)
    idata = mcmc.to_inferencedata(
        align=True,
        coords={"measurement": names, "axis": range(1, RANK + 1)},
        dims={"loadings": ["measurement", "axis"], "scales": ["axis"]},
    )
    idata.to_netcdf(str(arguments.output / "bayesian_pca.nc"), engine="h5netcdf")
    figure(y, names, cultivar, mcmc.get_samples(align=True)).savefig(arguments.output / "bayesian_pca.png", dpi=150)
    print(f"Wrote {arguments.output / 'bayesian_pca.png'} and {arguments.output / 'bayesian_pca.nc'}.")
    return mcmc


if __name__ == "__main__":
    main()
