"""Factor analysis of nine mental tests: unique variances, and varimax of the draws.

In 1939 Holzinger & Swineford gave tests to pupils of two schools in Chicago. Nine of them are the standard example of
factor analysis: three of vision, three of language and three of speed. The scores of a pupil are

    y_i ~ N(0, U diag(s²) Uᵀ + diag(u²)),   U uniform on the Stiefel manifold V(9, rank),

with a unique variance u² for each test. With `NormalSingularValues` for s the loadings U diag(s) are independent
normal ones without their rotations, and so have the same prior for each number of factors.

The likelihood does not depend on the rotation of the factors. The draws are rotated after sampling: `varimax` for
uncorrelated factors, `promax` for correlated ones.

    python -m examples.mental_tests --output results

prints the summary, the loadings, those of scikit-learn and the evidence of 1 to 5 factors, and writes two pictures.
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
from sklearn.decomposition import FactorAnalysis

from examples import datasets, gallery
from pyro_manifold.diagnostics import align_signs_and_permutations, plot_loadings, promax, varimax
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence

FACTORS = ["vision", "language", "speed"]
EXPECTED = torch.eye(3, dtype=torch.float64).repeat_interleave(3, 0)  # tests in threes: signs and order of the factors


def model(y, rank):
    n = y.shape[-1]
    U = pyro.sample("U", StiefelUniform(n, rank))
    scales = pyro.sample("scales", NormalSingularValues(n, rank, 0.5))
    unique = pyro.sample("unique", dist.LogNormal(-0.5, 0.5).expand([n]).to_event(1))
    with pyro.plate("pupils", len(y)):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), U * scales[..., None, :], unique**2), obs=y)


def load():
    """Return standardised scores ``(301, 9)`` and the names of the tests."""
    scores, names = datasets.mental_tests()
    y = torch.as_tensor(scores)
    return (y - y.mean(0)) / y.std(0), names


def loadings(mcmc):
    """Return U diag(s), ``(chains, draws, 9, rank)``."""
    draws = mcmc.get_samples(group_by_chain=True)
    return draws["U"] * draws["scales"].unsqueeze(-2)


def maximum_likelihood(y, reference):
    """Return the varimax loadings of scikit-learn, with the signs and order of the reference."""
    found = FactorAnalysis(reference.shape[-1], rotation="varimax", tol=1e-8, max_iter=10_000).fit(y.numpy())
    components = torch.as_tensor(found.components_.T)
    return align_signs_and_permutations(components[None, None], reference).draws[0, 0]


def evidence(y, ranks, particles):
    def short(model):
        return SMC(OHMC(model), num_particles=particles, disable_progbar=True)

    return compare_evidence(model, y, over={"rank": ranks}, smc=short)


def figure(rotated, classical, names):
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=[1, 1.15])
    plot_loadings(rotated, names, FACTORS, ax=left).set_title("varimax of the draws: mean ± s.d.")
    low, middle, high = np.quantile(rotated.flatten(0, 1), [0.03, 0.5, 0.97], axis=0)
    rows = np.arange(len(names))
    for k, colour in enumerate(("#0072B2", "#D55E00", "#009E73")):
        places = rows + 0.25 * (k - 1)
        right.hlines(places, low[:, k], high[:, k], color=colour, lw=2)
        right.plot(middle[:, k], places, "o", color=colour, ms=4, label=FACTORS[k])
        right.plot(classical[:, k], places, "|", color="black", ms=9, label="scikit-learn" if k == 2 else None)
    right.axvline(0, color="0.8", lw=1, zorder=0)
    right.set_yticks(rows, names)
    right.set(xlabel="loading", title="94 % intervals, and the maximum likelihood", ylim=(len(names) - 0.5, -0.5))
    right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize="small")
    right.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def report(rotated, oblique, classical, names):
    mean, deviation = rotated.mean((0, 1)), rotated.std((0, 1))
    print("\nvarimax, mean ± s.d. (scikit-learn)   " + "".join(f"{name:>20s}" for name in FACTORS))
    for i, name in enumerate(names):
        cells = (f"{mean[i, k]:6.2f} ± {deviation[i, k]:.2f} ({classical[i, k]:5.2f})" for k in range(3))
        print(f"{name:36s}" + " ".join(cells))
    print("\ncorrelations of the promax factors, with 94 % intervals")
    for j, k in ((0, 1), (0, 2), (1, 2)):
        low, high = oblique.correlations[..., j, k].flatten().quantile(torch.tensor([0.03, 0.97]))
        middle = oblique.correlations[..., j, k].mean()
        print(f"{FACTORS[j]} and {FACTORS[k]}: {middle:.2f} [{low:.2f}, {high:.2f}]")


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 3, 4, 5], help="numbers of factors to compare")
    parser.add_argument("--particles", type=int, default=512)
    arguments = gallery.begin(parser, argv)

    y, names = load()
    mcmc = MCMC(OHMC(model), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(y, rank=3)
    mcmc.summary(max_rows=30)
    rotated = varimax(loadings(mcmc), EXPECTED, normalise=False).draws  # as scikit-learn, whose rows are not normalised
    oblique = promax(loadings(mcmc), reference=EXPECTED)
    classical = maximum_likelihood(y, EXPECTED)
    report(rotated, oblique, classical, names)
    pictures, table = {"mental_tests": figure(rotated, classical, names)}, None
    if arguments.ranks:
        table = evidence(y, arguments.ranks, arguments.particles)
        print(f"\n{table.round(2)}")
        pictures["mental_tests_evidence"] = gallery.figure_of_evidence(table)
    gallery.write(arguments.output, pictures, cut=["mental_tests_evidence"])
    return rotated, oblique, classical, table


if __name__ == "__main__":
    main()
