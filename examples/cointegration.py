"""Cointegration of GDP, consumption and investment of the United States, with a uniform prior of the relation.

Series that grow without bound are cointegrated if some combination of them stays near a constant. A vector
error-correction model describes the changes of the logs y_t of three series by their distance from k relations,

    Δy_t ~ N(drift + A Bᵀ y_{t−1} + Γ Δy_{t−1}, Σ),

in which only the product A Bᵀ, and so the span of the relations B, is identified. Econometric practice sets one entry
of each relation to 1, which fails if that entry is near zero. Here B is orthonormal with the uniform prior (Strachan &
Inder 2004, Villani 2005), which prefers no relation to another.

    python -m examples.cointegration --output results

prints the summary, the relation and that of statsmodels, Johansen's test and the evidence of 0, 1 and 2 relations, and
writes two pictures.
"""

import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from statsmodels.tsa.vector_ar.vecm import VECM, select_coint_rank

from examples import datasets, gallery
from pyro_manifold.diagnostics import align_signs
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.distributions.transforms import HouseholderTransform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence

SERIES = ["GDP", "consumption", "investment"]
LIMITS = torch.tensor([0.03, 0.97], dtype=torch.float64)


def model(y, rank, scale=0.2):
    n, change = y.shape[-1], y.diff(dim=0)
    drift = pyro.sample("drift", dist.Normal(0.0, 1.0).expand([n]).to_event(1))
    short_run = pyro.sample("short_run", dist.Normal(0.0, 0.5).expand([n, n]).to_event(2))
    expected = drift[..., None, :] + change[:-1] @ short_run.mT
    if rank:
        relations = pyro.sample("relations", StiefelUniform(n, rank))
        speeds = pyro.sample("speeds", dist.Normal(0.0, scale).expand([n, rank]).to_event(2))
        expected = expected + (y[1:-1] @ relations) @ speeds.mT
    scales = pyro.sample("scales", dist.HalfNormal(3.0).expand([n]).to_event(1))
    correlations = pyro.sample("correlations", dist.LKJCholesky(n, 2.0))
    factor = scales[..., None] * correlations
    with pyro.plate("quarters", len(y) - 2):
        pyro.sample("change", dist.MultivariateNormal(expected, scale_tril=factor[..., None, :, :]), obs=change[1:])


def together():
    """Return the kernel: the speeds follow as the relation turns, and so both have coordinates and masses in common."""
    transforms = {"relations": HouseholderTransform(3, 1).inv}
    return OHMC(model, transforms=transforms, full_mass=[("relations", "speeds")], target_accept_prob=0.95)


def load():
    """Return logs ×100 without their means, ``(203, 3)``, and the quarters."""
    y, quarters = datasets.accounts()
    y = torch.as_tensor(y)
    return y - y.mean(0), quarters


def maximum_likelihood(y, reference):
    """Return relation and speeds of statsmodels, of length 1 and with the sign of the reference, and the fit."""
    fit = VECM(y.numpy(), k_ar_diff=1, coint_rank=1, deterministic="co").fit()
    relation = torch.as_tensor(fit.beta)
    length = relation.norm()
    aligned = align_signs((relation / length)[None, None], reference)
    return (
        aligned.draws[0, 0, :, 0],
        torch.as_tensor(fit.alpha[:, 0]) * length * aligned.transformation[0, 0, 0, 0],
        fit,
    )


def report(y, draws, relation, speeds, fit):
    print("\n             relation, posterior           statsmodels   speed, posterior          statsmodels")
    for i, name in enumerate(SERIES):
        cells = []
        for values, other in ((draws["relations"], relation), (draws["speeds"], speeds)):
            low, middle, high = values[..., i, 0].flatten().quantile(torch.tensor([0.03, 0.5, 0.97]))
            cells.append(f"{middle:6.2f} [{low:5.2f}, {high:5.2f}] {float(other[i]):15.2f}")
        print(f"{name:12s} {'    '.join(cells)}")
    trend = torch.linalg.svd(y, full_matrices=False)[2][0]
    off = torch.rad2deg((draws["relations"][..., 0] @ trend).abs().asin()).flatten()
    print(
        f"angle between relation and plane orthogonal to the trend: at most {off.quantile(0.94):.1f}° in 94 % of draws"
    )
    for i in (1, 2):
        print(f"statsmodels, GDP = 1: {SERIES[i]} {fit.beta[i, 0]:.1f}, standard error {fit.stderr_beta[i, 0]:.1f}")
    ratios = draws["relations"][..., 1:, 0] / draws["relations"][..., :1, 0]
    for i in (1, 2):
        low, high = ratios[..., i - 1].flatten().quantile(LIMITS)
        print(f"posterior, GDP = 1: {SERIES[i]}, 94 % interval [{low:.0f}, {high:.0f}]")
    print(select_coint_rank(y.numpy(), det_order=0, k_ar_diff=1).summary())


def angles(y, relations):
    """Return angles ``(...)`` in degrees, in [0, 180), of relations ``(..., 3)`` in the plane orthogonal to the trend.

    The trend is the first principal axis of the levels. A relation has to cancel it. The angle is 0 for the ratio of
    consumption to GDP, and a relation and its negative have the same angle.
    """
    trend = torch.linalg.svd(y, full_matrices=False)[2][0]
    ratio = torch.tensor([-1.0, 1.0, 0.0])
    first = torch.nn.functional.normalize(ratio - (ratio @ trend) * trend, dim=0)
    second = torch.linalg.cross(trend, first)
    return torch.rad2deg(torch.atan2(relations @ second, relations @ first)) % 180


def figure_of_relation(y, draws, relation):
    fig, ax = plt.subplots(figsize=(9, 3.2))
    found = angles(y, draws["relations"][..., 0]).flatten()
    ax.hist(found.numpy(), bins=90, range=(0, 180), density=True, color="#0072B2", alpha=0.5, label="posterior")
    ratios = {"consumption / GDP": [-1.0, 1.0, 0.0], "investment / GDP": [-1.0, 0.0, 1.0]}
    lines = {"statsmodels": relation} | {name: torch.tensor(ratio) for name, ratio in ratios.items()}
    for (name, line), style in zip(lines.items(), (("black", "-"), ("#D55E00", "--"), ("#009E73", ":")), strict=True):
        ax.axvline(float(angles(y, line)), color=style[0], ls=style[1], lw=2, label=name)
    ax.set(xlabel="angle of the relation in the plane orthogonal to the trend (degrees)", ylabel="density")
    ax.set(xlim=(-2, 180))
    ax.set_xticks(range(0, 181, 30))
    ax.legend(frameon=False, fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def figure_of_distance(y, quarters, draws, relation):
    fig, ax = plt.subplots(figsize=(9, 3.2))
    distances = (y @ draws["relations"].flatten(0, 1))[..., 0]
    low, high = distances.quantile(LIMITS, dim=0).numpy()
    ax.fill_between(quarters, low, high, alpha=0.25, color="#0072B2", lw=0, label="94 % interval")
    ax.plot(quarters, distances.median(0).values.numpy(), color="#0072B2", label="posterior median")
    ax.plot(quarters, (y @ relation).numpy(), color="black", lw=1, label="statsmodels")
    ax.axhline(0, color="0.85", lw=1, zorder=0)
    ax.set(ylabel="distance Bᵀy from the relation", xlim=(quarters[0], quarters[-1]))
    ax.legend(frameon=False, ncols=3, fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[0, 1, 2], help="numbers of relations to compare")
    parser.add_argument("--particles", type=int, default=512)
    parser.add_argument("--scale", type=float, default=0.2, help="prior standard deviation of the speeds")
    arguments = gallery.begin(parser, argv)

    y, quarters = load()
    mcmc = MCMC(together(), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(y, rank=1, scale=arguments.scale)
    mcmc.summary(max_rows=6)
    draws = mcmc.get_samples(group_by_chain=True, align=True)
    relation, speeds, fit = maximum_likelihood(y, draws["relations"].mean((0, 1)))
    report(y, draws, relation, speeds, fit)
    table = None
    if arguments.ranks:

        def short(model):
            return SMC(OHMC(model), num_particles=arguments.particles, disable_progbar=True)

        table = compare_evidence(model, y, scale=arguments.scale, over={"rank": arguments.ranks}, smc=short)
        print(f"\n{table.round(2)}")
    first, second = figure_of_relation(y, draws, relation), figure_of_distance(y, quarters, draws, relation)
    gallery.write(arguments.output, {"cointegration": first, "cointegration_distance": second})
    return draws, relation, table


if __name__ == "__main__":
    main()
