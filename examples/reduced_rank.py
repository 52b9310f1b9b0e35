"""Reduced-rank regression of serum measurements and progression of diabetes on age, sex, body mass index and pressure.

Four predictors act on seven responses through few combinations,

    y_i ~ N(V diag(d) Uᵀ x_i, Σ),   U uniform on V(4, rank), V uniform on V(7, rank),

so that the 4×7 coefficients have a low rank. Σ has all correlations: the responses of a patient are not independent.

    python -m examples.reduced_rank --output results

prints the summary, canonical correlations beside those of statsmodels, tests and evidence of the rank, and writes two
pictures.
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
from pyro_manifold.diagnostics import plot_loadings
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence


def model(x, y, rank):
    p, q = x.shape[-1], y.shape[-1]
    expected = torch.zeros(len(y), q)
    if rank:
        U = pyro.sample("U", StiefelUniform(p, rank))
        V = pyro.sample("V", StiefelUniform(q, rank))
        strengths = pyro.sample("strengths", NormalSingularValues(q, rank, 0.3))
        expected = x @ (U * strengths[..., None, :]) @ V.mT
    scales = pyro.sample("scales", dist.HalfNormal(1.0).expand([q]).to_event(1))
    cholesky = pyro.sample("cholesky", dist.LKJCholesky(q, 1.0))
    factor = scales[..., None] * cholesky
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.MultivariateNormal(expected, scale_tril=factor[..., None, :, :]), obs=y)


def load():
    """Return standardised ``x (442, 4)`` and ``y (442, 7)``, and the names of their columns."""
    x, y, *names = datasets.diabetes()
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    return (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0), *names


def coefficients(draws):
    return (draws["U"] * draws["strengths"].unsqueeze(-2)) @ draws["V"].mT


def canonical_correlations(x, draws):
    """Return the canonical correlations between x and y for each draw, largest first, ``(chains, draws, rank)``."""
    explained = (x / len(x) ** 0.5) @ coefficients(draws)  # its crossproduct is the explained covariance
    residual = draws["scales"].unsqueeze(-1) * draws["cholesky"]
    ratio = torch.linalg.solve_triangular(residual, explained.mT, upper=False)
    eigenvalues = torch.linalg.eigvalsh(ratio @ ratio.mT).flip(-1)[..., : draws["strengths"].shape[-1]]
    return (eigenvalues / (1 + eigenvalues)).sqrt()


def report(x, y, draws):
    print("\ncanonical correlations: posterior mean and 94 % interval, statsmodels")
    found, classical = canonical_correlations(x, draws).flatten(0, 1), CanCorr(y.numpy(), x.numpy())
    for k, other in enumerate(classical.cancorr):
        middle = (
            ""
            if k >= found.shape[-1]
            else "{:.2f} [{:.2f}, {:.2f}]".format(found[:, k].mean(), *found[:, k].quantile(torch.tensor([0.03, 0.97])))
        )
        print(f"{k + 1}  {middle:18s} {other:.2f}")
    print(classical.corr_test().stats)


def figure_of_axes(draws, predictors, responses):
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=[1, 1])
    columns = [f"{k + 1}" for k in range(draws["U"].shape[-1])]
    plot_loadings(draws["U"], predictors, columns, ax=axes[0]).set_title("combinations of predictors, U")
    plot_loadings(draws["V"], responses, columns, ax=axes[1]).set_title("responses to them, V")
    return fig


def figure_of_coefficients(x, y, draws, predictors, responses):
    """Intervals of coefficients, beside least squares ± 1.88 standard errors."""
    least, residuals = torch.linalg.lstsq(x, y).solution, y - x @ torch.linalg.lstsq(x, y).solution
    variance = residuals.square().sum(0) / (len(y) - x.shape[-1] - 1)
    errors = (torch.linalg.inv(x.T @ x).diag()[:, None] * variance).sqrt()
    low, middle, high = coefficients(draws).flatten(0, 1).quantile(torch.tensor([0.03, 0.5, 0.97]), dim=0)
    fig, axes = plt.subplots(1, len(predictors), figsize=(12, 3.4), sharey=True, sharex=True)
    rows = np.arange(len(responses))
    for k, (ax, name) in enumerate(zip(axes, predictors, strict=True)):
        ax.errorbar(least[k], rows + 0.15, xerr=1.88 * errors[k], fmt="o", ms=3, color="0.5", label="least squares")
        ax.hlines(rows - 0.15, low[k], high[k], color="#0072B2", lw=2)
        ax.plot(middle[k], rows - 0.15, "o", ms=4, color="#0072B2", label="posterior")
        ax.axvline(0, color="0.85", lw=1, zorder=0)
        ax.set(title=name, xlabel="coefficient")
        ax.set_yticks(rows, responses)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False, fontsize="small")
    return fig


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 3, 4], help="to compare")
    parser.add_argument("--particles", type=int, default=512)
    arguments = gallery.begin(parser, argv)

    x, y, *names = load()
    mcmc = MCMC(OHMC(model), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(x, y, rank=3)
    mcmc.summary(max_rows=7)
    draws = mcmc.get_samples(group_by_chain=True, align=True)
    report(x, y, draws)

    def run(model):
        return SMC(OHMC(model), num_particles=arguments.particles, disable_progbar=True)

    table = compare_evidence(model, x, y, over={"rank": arguments.ranks}, smc=run)
    print(f"\n{table.round(2)}")
    first, second = figure_of_axes(draws, *names), figure_of_coefficients(x, y, draws, *names)
    for each in (first, second):
        each.tight_layout()
    gallery.write(arguments.output, {"reduced_rank": first, "reduced_rank_coefficients": second})
    return draws, table


if __name__ == "__main__":
    main()
