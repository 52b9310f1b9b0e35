"""Statistical factors of stock returns, and how far they are from Fama and French's market, size and value.

Monthly returns y_t of twelve industries in excess of the riskless rate, standardised, have common factors and tails
heavier than a normal distribution's:

    y_t ~ Student t_ν(0, U diag(s²) Uᵀ + diag(u²)),   U uniform on the Stiefel manifold V(12, rank).

Fama and French made factors from what is known of firms: the market, small minus big, value minus growth. The loadings
of the industries on one of them, by least squares, are a vector of twelve numbers. Its angle to the span of U tells
whether the factor is one that moves industries together.

    python -m examples.equity_factors --output results

prints the summary, angles beside those of principal components with a bootstrap, and the evidence of 1 to 6 factors,
and writes two pictures.
"""

import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch

from examples import datasets, gallery
from pyro_manifold.diagnostics import plot_loadings, principal_angles, varimax
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence

LIMITS = torch.tensor([0.03, 0.5, 0.97], dtype=torch.float64)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


class LowRankStudentT(dist.TorchDistribution):
    """Student's t about zero with ν degrees of freedom and the scale matrix L Lᵀ + diag(u²)."""

    support = dist.constraints.real_vector

    def __init__(self, df, factor, variances):
        zeros, self.df = torch.zeros(factor.shape[-2]), df
        self.normal = dist.LowRankMultivariateNormal(zeros, factor, variances, validate_args=False)
        super().__init__(self.normal.batch_shape, self.normal.event_shape, validate_args=False)

    def log_prob(self, y):
        n, at_zero = y.shape[-1], self.normal.log_prob(torch.zeros_like(y[..., :1, :]))
        distance = 2 * (at_zero - self.normal.log_prob(y))  # Mahalanobis' distance, squared
        df = self.df
        normaliser = torch.lgamma((df + n) / 2) - torch.lgamma(df / 2) - n / 2 * torch.log(df / 2)
        return at_zero + normaliser - (df + n) / 2 * torch.log1p(distance / df)


def model(y, rank, normal=False):
    n = y.shape[-1]
    U = pyro.sample("U", StiefelUniform(n, rank))
    scales = pyro.sample("scales", NormalSingularValues(n, rank, 0.5))
    unique = pyro.sample("unique", dist.LogNormal(-0.5, 0.5).expand([n]).to_event(1))
    factor, variances = U * scales[..., None, :], unique**2
    if normal:
        returns = dist.LowRankMultivariateNormal(torch.zeros(n), factor, variances)
    else:
        df = pyro.sample("df", dist.Gamma(2.0, 0.1))
        returns = LowRankStudentT(df, factor, variances)
    with pyro.plate("months", len(y)):
        pyro.sample("y", returns, obs=y)


def load():
    """Return standardised returns ``(819, 12)`` and factors ``(819, 4)``, with the names of both."""
    returns, factors, *names = datasets.industries()
    y, f = torch.as_tensor(returns), torch.as_tensor(factors)
    return (y - y.mean(0)) / y.std(0), (f - f.mean(0)) / f.std(0), *names


def loadings_on(f, y, count):
    """Return draws of the coefficients of y in a regression on f with a flat prior, ``(count, 12, 4)``."""
    estimate = torch.linalg.lstsq(f, y).solution.mT
    residuals = y - f @ estimate.mT
    of_errors = torch.linalg.cholesky(residuals.mT @ residuals / (len(y) - f.shape[-1] - 1))
    of_factors = torch.linalg.cholesky(torch.linalg.inv(f.mT @ f))
    return estimate + of_errors @ torch.randn(count, *estimate.shape) @ of_factors.mT


def angles(span, loadings):
    """Return the angle of each column of loadings to a span ``(..., n, rank)`` in degrees, ``(..., columns)``."""
    each = [principal_angles(span, column.unsqueeze(-1)) for column in loadings.unbind(-1)]
    return torch.cat(each, -1).rad2deg()


def components(y, rank):
    """Return the leading principal axes, ``(..., n, rank)``."""
    return torch.linalg.svd(y - y.mean(-2, keepdim=True), full_matrices=False).Vh.mT[..., :rank]


def bootstrap(y, f, rank, count=1_000):
    """Return angles of the loadings to the principal axes of months drawn with replacement, ``(count, factors)``."""
    rows = torch.randint(len(y), (count, len(y)))
    found = [angles(components(y[i], rank), torch.linalg.lstsq(f[i], y[i]).solution.mT) for i in rows]
    return torch.stack(found)


def report(posterior, classical, again, names):
    print("\nangle to the span of the factors, degrees: posterior, principal components, their bootstrap")
    for k, name in enumerate(names):
        low, middle, high = posterior[:, k].quantile(LIMITS)
        first, _, last = again[:, k].quantile(LIMITS)
        print(f"{name:10s} {middle:3.0f} [{low:.0f}, {high:.0f}]   {classical[k]:3.0f} [{first:.0f}, {last:.0f}]")


def figure(rotated, industries, posterior, classical, names):
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=[1, 1.1])
    columns = [f"{k + 1}" for k in range(rotated.shape[-1])]
    plot_loadings(rotated, industries, columns, ax=left).set_title("loadings, varimax of the draws")
    for k, name in enumerate(names):
        right.hist(posterior[:, k].numpy(), 60, density=True, color=COLOURS[k], alpha=0.6, label=name)
        right.axvline(float(classical[k]), color=COLOURS[k], ls="--", lw=1)
    right.set(xlabel="degrees", yticks=[], xlim=(0, 90), ylim=(0, 0.35))
    right.set_title("angle to the span of the factors\n(dashed: principal components)")
    right.legend(frameon=False)
    right.spines[["top", "right", "left"]].set_visible(False)
    fig.tight_layout()
    return fig


def evidence(y, ranks, particles, normal):
    def short(model):
        return SMC(OHMC(model), num_particles=particles, disable_progbar=True)

    return compare_evidence(model, y, over={"rank": ranks}, smc=short, normal=normal)


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--rank", type=int, default=4, help="number of factors")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 3, 4, 5, 6], help="numbers to compare")
    parser.add_argument("--particles", type=int, default=512)
    arguments = gallery.begin(parser, argv)

    y, f, industries, names = load()
    mcmc = MCMC(OHMC(model), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(y, arguments.rank)
    mcmc.summary(max_rows=20)
    draws = mcmc.get_samples(group_by_chain=True)
    spans = draws["U"].flatten(0, 1)
    posterior = angles(spans, loadings_on(f, y, len(spans)))
    classical = angles(components(y, arguments.rank), torch.linalg.lstsq(f, y).solution.mT)
    report(posterior, classical, bootstrap(y, f, arguments.rank), names)
    rotated = varimax(draws["U"] * draws["scales"].unsqueeze(-2)).draws
    pictures, table = {"equity_factors": figure(rotated, industries, posterior, classical, names)}, None
    for normal in (True, False) if arguments.ranks else ():
        table = evidence(y, arguments.ranks, arguments.particles, normal)
        print(f"\n{'normal' if normal else 'Student'} errors\n{table.round(2)}")
        pictures["equity_factors_evidence"] = gallery.figure_of_evidence(table)
    gallery.write(arguments.output, pictures, cut=["equity_factors_evidence"])
    return posterior, classical, table


if __name__ == "__main__":
    main()
