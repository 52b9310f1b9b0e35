"""Independent components of stock returns: which of them the data determine, and which FastICA only prints.

Monthly returns of twelve industries, as k = 6 whitened principal components x_t, are a rotation of sources with heavy
tails, and all sources of a month have the volatility τ_t of that month in common:

    x_t = τ_t U s_t,   s_tj ~ Student t with ν_j degrees of freedom and variance 1,   U uniform on V(k, k),
    log τ_t ~ N(−ω², ω²), so that E τ_t² = 1.

Directions of nearly normal sources are not identified, and the posterior says so. With ω = 0 the model is that of
independent component analysis. It takes months in which all returns are large as evidence of directions.

    python -m examples.independent_components --output results

prints the summary, the spread of each direction beside FastICA's from many starts and its bootstrap, and how often the
cones of all contain known directions of simulated data, and writes two pictures.
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
from matplotlib.patheffects import withStroke
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from examples import datasets, gallery
from pyro_manifold.diagnostics import align_signs_and_permutations, plot_loadings
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

LEVEL = 0.94
NEAR = 20.0  # degrees within which a direction of FastICA counts as the same
COLOURS = {"common volatility": "#0072B2", "independent": "#E69F00", "FastICA, bootstrap": "#D55E00"}
# Degrees of freedom of simulated sources: the last two are nearly normal.
TRUTH = torch.tensor([3.0, 4.0, 6.0, 10.0, 50.0, 50.0], dtype=torch.float64)
VOLATILITY = 0.35


class Rotated(dist.TorchDistribution):
    """Rows τ U s: independent Student sources of variance 1, and a scale τ in common with a log-normal distribution.

    The integral over log τ is a sum over seven points of Gauss and Hermite. ``volatility`` None is τ = 1.
    """

    support = dist.constraints.real_vector

    def __init__(self, U, df, volatility=None):
        self.U, self.df, self.volatility = U, df, volatility
        super().__init__(U.shape[:-2], U.shape[-1:], validate_args=False)

    def log_prob(self, x):
        df = self.df[..., None, None, :]
        sources = dist.StudentT(df, 0.0, (1 - 2 / df).sqrt())
        projected = (x @ self.U).unsqueeze(-3)  # U is orthonormal: its Jacobian is 1
        if self.volatility is None:
            return sources.log_prob(projected).sum(-1).squeeze(-2)
        points, weights = (torch.as_tensor(each) for each in np.polynomial.hermite_e.hermegauss(7))
        log_scale = self.volatility[..., None] * points - self.volatility[..., None] ** 2
        each = sources.log_prob(projected * (-log_scale).exp()[..., None, None]).sum(-1)
        log_weights = (weights / weights.sum()).log() - x.shape[-1] * log_scale
        return torch.logsumexp(each + log_weights[..., None], -2)


def model(x, common=True):
    k = x.shape[-1]
    U = pyro.sample("U", StiefelUniform(k, k))
    excess = pyro.sample("excess", dist.Gamma(2.0, 0.1).expand([k]).to_event(1))  # ν = 2 + excess
    volatility = pyro.sample("volatility", dist.HalfNormal(0.5)) if common else None
    with pyro.plate("months", len(x)):
        pyro.sample("x", Rotated(U, 2 + excess, volatility), obs=x)


def whitened(y, k):
    """Return the k leading principal components of rows, each with variance 1, and their share of the variance."""
    left, scales, _ = torch.linalg.svd(y - y.mean(0), full_matrices=False)
    return left[:, :k] * len(y) ** 0.5, scales[:k].square().sum() / scales.square().sum()


def load(k):
    """Return whitened components ``(819, k)``, their share of variance, standardised returns and their names."""
    returns, _, industries, _ = datasets.industries()
    y = torch.as_tensor(returns)
    y = (y - y.mean(0)) / y.std(0)
    return *whitened(y, k), y, industries


def posterior(x, draws, common=True):
    mcmc = MCMC(OHMC(model), draws, draws, num_chains=4, disable_progbar=True)
    mcmc.run(x, common)
    return mcmc


def degrees(draws, centre):
    """Return angles between columns and the columns of a centre, without regard to sign, ``(..., k)``."""
    return (draws * centre).sum(-2).abs().clamp(max=1.0).acos().rad2deg()


def unit(U):
    return torch.nn.functional.normalize(U, dim=-2)


def matched(U, centre):
    """Return columns in the order that is nearest to the columns of a centre."""
    return U[:, linear_sum_assignment(-(centre.mT @ U).abs().numpy())[1]]


def cone(draws):
    """Return the mean direction of each column of aligned draws, and the angle within which 94 % of them are."""
    centre = unit(draws.mean(0))
    return centre, degrees(draws, centre).quantile(LEVEL, dim=0)


def fast_ica(x, seed=0):
    """Return directions ``(k, k)`` found by FastICA from a random start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = FastICA(x.shape[-1], whiten="unit-variance", random_state=seed, max_iter=500).fit(x.numpy())
    return unit(torch.as_tensor(found.components_).mT)


def from_starts(x, centre, count):
    """Return directions from random starts in the order of a centre, ``(count, k, k)``."""
    return torch.stack([matched(fast_ica(x, seed), centre) for seed in range(count)])


def bootstrap(x, centre, count):
    """Return directions of rows drawn with replacement in the order of a centre, ``(count, k, k)``."""
    return torch.stack([matched(fast_ica(x[torch.randint(len(x), (len(x),))]), centre) for _ in range(count)])


def simulated(n):
    """Return whitened data of known sources, and the directions that recover the sources, ``(k, k)``."""
    sources = dist.StudentT(TRUTH, 0.0, (1 - 2 / TRUTH).sqrt()).sample((n,))
    scale = (VOLATILITY * torch.randn(n, 1) - VOLATILITY**2).exp()
    y = scale * sources @ StiefelUniform(len(TRUTH), len(TRUTH)).sample().mT
    x, _ = whitened(y, len(TRUTH))
    return x, unit(torch.linalg.lstsq(x, scale * sources).solution)


def coverage(count, n, draws, resampled):
    """Return the cone and the error of each known direction by three methods, ``(count, 3, k, 2)`` in degrees."""
    found = []
    for _ in range(count):
        x, truth = simulated(n)
        cones = [cone(posterior(x, draws, common).get_samples(align=True)["U"]) for common in (True, False)]
        estimate = fast_ica(x)
        cones.append((estimate, degrees(bootstrap(x, estimate, resampled), estimate).quantile(LEVEL, dim=0)))
        rows = []
        for centre, width in cones:
            order = linear_sum_assignment(-(truth.mT @ centre).abs().numpy())[1]
            rows.append(torch.stack([width[order], degrees(centre[:, order], truth)], -1))
        found.append(torch.stack(rows))
    return torch.stack(found)


def of_months(x, rows, centre, draws):
    """Return the cone, the angle to a direction and the degrees of freedom of its counterpart in some months alone."""
    z = x[rows] - x[rows].mean(0)
    values, vectors = torch.linalg.eigh(z.mT @ z / len(z))
    root = vectors / values.sqrt() @ vectors.mT  # near the identity, so that columns of x and z correspond
    samples = posterior(z @ root, draws).get_samples(align=True)
    directions = unit(root @ samples["U"])
    mean, width = cone(directions)
    k = int((mean * centre[:, None]).sum(-2).abs().argmax())
    return width[k], degrees(mean[:, k : k + 1], centre[:, None])[0], 2 + samples["excess"][:, k].median()


def lagged(values):
    """Return the correlations of columns with themselves a row before."""
    z = (values - values.mean(0)) / values.std(0)
    return (z[1:] * z[:-1]).mean(0)


def report_of_dependence(x, draws, every):
    """Print serial correlations, and what parts of the months alone have of the first component."""
    centre = unit(draws.mean(0))
    sources = x @ centre
    print("\ncorrelation with the month before, of sources:", " ".join(f"{each:.2f}" for each in lagged(sources)))
    print("of their absolute values:", " ".join(f"{each:.2f}" for each in lagged(sources.abs())))
    n, half = len(x), len(x) // 2
    parts = {"first half": slice(0, half), "second half": slice(half, n)}
    parts |= {f"every third month from {k + 1}": slice(k, n, 3) for k in range(3)}
    print("component 1 in a part of the months: cone, angle to that of all, degrees of freedom")
    for name, rows in parts.items():
        width, angle, df = of_months(x, rows, centre[:, 0], every)
        print(f"{name}: {width:.0f}, {angle:.0f}, {df:.1f}")


def by_chance(k, count=2_000):
    """Return the cone of matrices that are uniform, aligned as draws are."""
    return cone(align_signs_and_permutations(StiefelUniform(k, k).sample((1, count))).draws.flatten(0, 1))[1].mean()


def report(draws, df, starts, again, estimate, loadings, industries):
    centre, width = cone(draws)
    near = (degrees(starts, centre) < NEAR).double().mean(0)
    print(f"\n94 % cone of directions by chance: {by_chance(len(centre)):.0f} degrees")
    print(
        "degrees of freedom, cone; FastICA: angle to the mean, share of starts nearby, cone of the bootstrap; loadings"
    )
    limits = df.quantile(torch.tensor([0.03, 0.5, 0.97]), dim=0)
    apart, cones = degrees(estimate, centre), degrees(again, estimate).quantile(LEVEL, dim=0)
    for k in range(len(width)):
        low, middle, high = limits[:, k]
        first = loadings[:, k].abs().argsort(descending=True)[:3]
        names = ", ".join(f"{industries[i]} {loadings[i, k]:.2f}" for i in first)
        print(
            f"{k + 1}: {middle:4.1f} [{low:.1f}, {high:.1f}]  {width[k]:3.0f}   {apart[k]:3.0f}  {100 * near[k]:3.0f} %"
            f"  {cones[k]:3.0f}   {names}"
        )


def report_of_coverage(found):
    for k, name in enumerate(COLOURS):
        width, error = found[:, k].unbind(-1)
        inside = (error < width).double()
        print(
            f"{name}: {100 * inside.mean():.0f} % of {inside.numel()} cones contain the direction, by component "
            + " ".join(f"{100 * share:.0f}" for share in inside.mean(0))
            + "; median cones "
            + " ".join(f"{each:.0f}" for each in width.median(0).values)
        )


def figure(draws, again, estimate, loadings, industries):
    fig, (left, right) = plt.subplots(1, 2, figsize=(14, 4.4), width_ratios=[1.9, 1])
    columns = [f"{k + 1}" for k in range(draws.shape[-1])]
    plot_loadings(loadings[None], industries, columns, ax=left).set_title("correlation of returns and sources")
    for text in left.texts:
        if text.get_color() == "0.5":  # grey, of uncertain sign, is hard to read on a dark cell
            text.set_path_effects([withStroke(linewidth=2.0, foreground="white")])
    places = np.arange(len(columns))
    for shift, name, values in (
        (-0.17, "posterior", degrees(draws, unit(draws.mean(0)))),
        (0.17, "bootstrap of FastICA", degrees(again, estimate)),
    ):
        colour = "#0072B2" if shift < 0 else "#D55E00"
        style = {"facecolor": colour, "alpha": 0.55}
        boxes = [
            dict(zip(("whislo", "q1", "med", "q3", "whishi"), each, strict=True), fliers=[])
            for each in values.quantile(torch.tensor([0.03, 0.25, 0.5, 0.75, 0.97]), dim=0).mT.tolist()
        ]
        right.bxp(boxes, places + shift, widths=0.28, patch_artist=True, boxprops=style, medianprops={"color": "black"})
        right.plot([], [], "s", color=colour, alpha=0.55, label=name)
    right.axhline(float(by_chance(len(columns))), color="0.5", ls=":", lw=1, label="94 % by chance")
    right.set_xticks(places, columns)
    right.set(xlabel="component", ylabel="degrees from the direction", ylim=(0, 90))
    right.legend(
        frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize="small", columnspacing=1
    )
    right.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def figure_of_coverage(found):
    fig, axes = plt.subplots(1, 3, figsize=(11, 4.2), sharex=True, sharey=True, layout="constrained")
    for k, (ax, name) in enumerate(zip(axes, COLOURS, strict=True)):
        width, error = found[:, k].unbind(-1)
        normal = (TRUTH > 30).expand_as(width)
        for part, marker, label in ((~normal, "o", "heavy tails"), (normal, "x", "nearly normal")):
            ax.plot(width[part], error[part], marker, color=COLOURS[name], ms=5, alpha=0.8, label=label)
        ax.plot([0, 90], [0, 90], color="0.6", lw=1)
        ax.set(title=name, xlabel="94 % cone, degrees", xlim=(0, 90), ylim=(0, 90), box_aspect=1)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("error of the direction, degrees")
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=1_000, warmup="as many")
    parser.add_argument("--rank", type=int, default=6, help="number of components")
    parser.add_argument("--starts", type=int, default=200, help="random starts, and data sets of the bootstrap")
    parser.add_argument("--simulated", type=int, default=8, help="data sets of known directions")
    arguments = gallery.begin(parser, argv)

    x, share, y, industries = load(arguments.rank)
    print(f"{arguments.rank} principal components have {100 * share:.0f} % of the variance")
    mcmc = posterior(x, arguments.draws)
    mcmc.summary(max_rows=14)
    samples = mcmc.get_samples(align=True)
    order = cone(samples["U"])[1].argsort()
    draws, df = samples["U"][..., order], 2 + samples["excess"][:, order]
    loadings = y.mT @ x @ draws / len(x)
    estimate = matched(fast_ica(x), unit(draws.mean(0)))
    starts = from_starts(x, unit(draws.mean(0)), arguments.starts)
    again = bootstrap(x, estimate, arguments.starts)
    report(draws, df, starts, again, estimate, loadings.mean(0), industries)
    alone = posterior(x, arguments.draws // 2, common=False).get_samples(align=True)["U"]
    centre = unit(draws.mean(0))
    theirs, narrow = cone(alone)
    columns = linear_sum_assignment(-(centre.mT @ theirs).abs().numpy())[1]
    print("cones of independent components:", " ".join(f"{each:.0f}" for each in narrow[columns]))
    report_of_dependence(x, draws, arguments.draws // 4)
    found = coverage(arguments.simulated, len(x), arguments.draws // 4, arguments.starts // 2)
    report_of_coverage(found)
    pictures = {"": figure(draws, again, estimate, loadings, industries), "_coverage": figure_of_coverage(found)}
    gallery.write(arguments.output, {f"independent_components{part}": each for part, each in pictures.items()})
    return draws, df, starts, again, found


if __name__ == "__main__":
    main()
