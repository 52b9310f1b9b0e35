"""Empirical orthogonal functions of sea-surface temperature, with intervals.

Empirical orthogonal functions (EOFs) are the principal axes of a field in time: here of the temperature of the sea off
Peru (the region Niño 1+2) in the twelve months of 61 years. The first describes El Niño. Classical EOFs, by the
singular value decomposition, come without intervals, and neighbouring ones mix if their variances are close. In the
model the anomalies of a year are

    y_i ~ N(0, U diag(s²) Uᵀ + σ² I),   U uniform on the Stiefel manifold V(12, 3),

so that the posterior of U has the uncertainty of each mode in each month.

    python -m examples.sea_surface --output results

prints the summary, variances with intervals by three methods and the mixing of modes, and writes two pictures.
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

from examples import datasets, gallery
from pyro_manifold.diagnostics import align_signs
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

MODES = 3
COLOURS = ("#0072B2", "#D55E00", "#009E73")
LIMITS = torch.tensor([0.03, 0.97], dtype=torch.float64)


def model(y, rank):
    n = y.shape[-1]
    U = pyro.sample("modes", StiefelUniform(n, rank))
    scales = pyro.sample("scales", dist.HalfNormal(3.0).expand([rank]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("years", len(y)):
        factor, diagonal = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(n)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), factor, diagonal), obs=y)


def load(first_month=1):
    """Return anomalies from the mean of each month, ``(years, 12)`` in °C, and the years in which rows begin."""
    values, years = datasets.sea_surface()
    series = torch.as_tensor(values).flatten()[first_month - 1 :]
    y = series[: len(series) // 12 * 12].reshape(-1, 12)
    return y - y.mean(0), years[: len(y)]


def classical(y):
    """Return EOFs ``(12, 12)`` in columns and their variances, by the singular value decomposition."""
    _, values, modes = torch.linalg.svd(y, full_matrices=False)
    return modes.mT, values.square() / len(y)


def bootstrap(y, reference, count=2_000):
    """Return EOFs ``(1, count, 12, 3)`` and variances of years drawn with replacement, matched in order and sign."""
    again = y[torch.randint(len(y), (count, len(y)))]
    _, values, modes = torch.linalg.svd(again - again.mean(1, keepdim=True), full_matrices=False)
    modes = align_signs(modes.mT[None, ..., :MODES], reference).draws
    return modes, values[:, :MODES].square() / len(y)


def scores(y, draws):
    """Return the conditional mean of a year's scores for each draw: s² / (s² + σ²) · Uᵀy."""
    shrinkage = draws["scales"] ** 2 / (draws["scales"] ** 2 + draws["noise"].unsqueeze(-1) ** 2)
    return (y @ draws["modes"]) * shrinkage.unsqueeze(-2)


def figure_of_modes(draws, eofs, again):
    fig, axes = plt.subplots(1, MODES, figsize=(11, 3.4), sharex=True, sharey=True)
    months = np.arange(1, 13)
    for k, panel in enumerate(axes):
        low, high = draws["modes"][..., k].flatten(0, 1).quantile(LIMITS, dim=0).numpy()
        panel.fill_between(months, low, high, color=COLOURS[k], alpha=0.25, lw=0, label="94 % interval")
        panel.plot(months, draws["modes"][..., k].mean((0, 1)).numpy(), color=COLOURS[k], label="posterior mean")
        panel.plot(months, eofs[:, k].numpy(), "k.", ms=5, label="SVD")
        for limit, label in zip(again[0, ..., k].quantile(LIMITS, dim=0).numpy(), ("bootstrap", None), strict=True):
            panel.plot(months, limit, color="0.45", lw=0.9, ls="--", label=label)
        panel.axhline(0, color="0.85", lw=1, zorder=0)
        panel.set(title=f"mode {k + 1}", xlabel="month")
        panel.set_xticks(months, list("JFMAMJJASOND"))
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("entry")
    axes[0].legend(frameon=False, fontsize="small", loc="lower center")
    fig.tight_layout()
    return fig


def figure_of_years(values, years):
    fig, ax = plt.subplots(figsize=(11, 3.0))
    low, high = values[..., 0].flatten(0, 1).quantile(LIMITS, dim=0).numpy()
    mean = values[..., 0].mean((0, 1)).numpy()
    ax.bar(years, mean, color=[COLOURS[1] if each > 0 else COLOURS[0] for each in mean], width=0.8)
    ax.vlines(years, low, high, color="0.2", lw=1)
    for place in mean.argsort()[-3:]:
        ax.annotate(
            str(years[place]), (years[place], float(high[place])), (0, 3), textcoords="offset points", ha="center"
        )
    ax.set(
        ylabel="score of mode 1 (°C)", title="Years: mean and 94 % interval of the score, from the modes' uncertainty"
    )
    ax.margins(x=0.01, y=0.12)
    ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def report(y, draws, eofs, variances, again, again_variances):
    """Print variances with 94 % intervals, North's rule of thumb λ(1 ± 1.88 √(2/N)), and how certain modes are."""
    bayesian = draws["scales"] ** 2 + draws["noise"].unsqueeze(-1) ** 2
    north = 1.88 * (2 / len(y)) ** 0.5
    print("\nvariance (°C²)      posterior              SVD, North's rule      SVD, bootstrap")
    for k in range(MODES):
        low, high = bayesian[..., k].flatten().quantile(LIMITS)
        first, last = again_variances[:, k].quantile(LIMITS)
        value = variances[k]
        print(
            f"mode {k + 1}       {bayesian[..., k].mean():6.2f} [{low:5.2f}, {high:5.2f}] "
            f" {value:6.2f} [{value * (1 - north):5.2f}, {value * (1 + north):5.2f}]"
            f"  {again_variances[:, k].mean():6.2f} [{first:5.2f}, {last:5.2f}]"
        )
    print("\nangle in degrees between a mode and the EOF by SVD, median and 97 % limit")
    for k in range(MODES):
        cells = []
        for modes in (draws["modes"], again):
            cosine = (modes[..., k] @ eofs[:, k]).abs().clamp(max=1).flatten()
            middle, most = torch.rad2deg(cosine.acos()).quantile(torch.tensor([0.5, 0.97]))
            cells.append(f"{middle:4.1f} {most:5.1f}")
        print(f"mode {k + 1}       posterior {cells[0]}       bootstrap {cells[1]}")


def main(argv=None):
    arguments = gallery.begin(gallery.options(__doc__), argv)

    y, years = load()
    mcmc = MCMC(OHMC(model), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(y, rank=MODES)
    mcmc.summary()
    draws = mcmc.get_samples(group_by_chain=True, align=True)
    eofs, variances = classical(y)
    eofs = align_signs(eofs[None, None, :, :MODES], draws["modes"].mean((0, 1))).draws[0, 0]
    again, again_variances = bootstrap(y, eofs)
    report(y, draws, eofs, variances, again, again_variances)
    for month, name in ((1, "January"), (7, "July")):
        values = classical(load(month)[0])[1]
        shares = ", ".join(f"{100 * share:.0f} %" for share in (values / values.sum())[:MODES])
        print(f"shares of the variance by SVD, years from {name}: {shares}")
    first, second = figure_of_modes(draws, eofs, again), figure_of_years(scores(y, draws), years)
    gallery.write(arguments.output, {"sea_surface": first, "sea_surface_years": second})
    return draws, eofs, again


if __name__ == "__main__":
    main()
