"""Principal motions of a protein with intervals: adenylate kinase on its way from closed to open.

Each of 98 snapshots of a trajectory is a row of 642 coordinates, three for each of 214 Cα atoms, after superposition
and less their mean. Rows have the covariance of probabilistic PCA,

    Cov(x_t) = U diag(s²) Uᵀ + σ² I,   U uniform on the Stiefel manifold V(642, 2),

and successive rows are correlated: along each motion by its own φ, and by φ₀ in all other directions. With φ = φ₀ = 0
rows are independent, which is what intervals of PCA usually assume.

    pip install MDAnalysis MDAnalysisTests
    python -m examples.protein_motions --output results

prints the summary, quantities of both models beside those of MDAnalysis with a bootstrap of blocks, halves of the
trajectory, and how often intervals contain the truth in simulated data, and writes two pictures.
"""

import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import arviz
import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value

from examples import datasets, gallery
from pyro_manifold.diagnostics import principal_angles
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

LIMITS = torch.tensor([0.03, 0.5, 0.97], dtype=torch.float64)
COLOURS = {"autoregression": "#0072B2", "independent": "#D55E00", "bootstrap": "0.45"}
DOMAINS = {"NMP": (30, 67), "LID": (118, 160)}
BLOCK = 14  # snapshots


def autoregression(x, variance, phi):
    """Return the log density of stationary series in the columns of x, with a correlation φ of successive rows."""
    deviation, phi = variance.sqrt(), phi[..., None, :]
    first = dist.Normal(0.0, deviation).log_prob(x[..., 0, :])
    innovation = deviation[..., None, :] * (1 - phi**2).sqrt()
    later = dist.Normal(phi * x[..., :-1, :], innovation).log_prob(x[..., 1:, :])
    return first.sum(-1) + later.sum((-2, -1))


class Motions(dist.TorchDistribution):
    """Rows of the covariance U diag(s²) Uᵀ + σ² I, correlated by φ along the columns of U and by φ₀ elsewhere."""

    support = dist.constraints.independent(dist.constraints.real, 2)

    def __init__(self, U, scales, noise, phi, phi_noise, length):
        variance = noise[..., None] ** 2
        self.U, self.along, self.elsewhere = U, (scales**2 + variance, phi), (variance, phi_noise[..., None])
        super().__init__(noise.shape, torch.Size([length, U.shape[-2]]), validate_args=False)

    def log_prob(self, x):
        z = x @ self.U
        outside = autoregression(x, *self.elsewhere) - autoregression(z, *self.elsewhere)
        return outside + autoregression(z, *self.along)


def model(x, rank, dependent=True):
    U = pyro.sample("U", StiefelUniform(x.shape[-1], rank))
    scales = pyro.sample("scales", dist.HalfNormal(50.0).expand([rank]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    phi, phi_noise = torch.zeros(rank), torch.zeros(())
    if dependent:
        phi = pyro.sample("phi", dist.Uniform(0.0, 1.0).expand([rank]).to_event(1))
        phi_noise = pyro.sample("phi_noise", dist.Uniform(0.0, 1.0))
    pyro.sample("x", Motions(U, scales, noise, phi, phi_noise, len(x)), obs=x)


def superposed(positions, reference):
    """Return positions ``(..., atoms, 3)`` moved and turned so that they are nearest to a reference."""
    centred, reference = positions - positions.mean(-2, keepdim=True), reference - reference.mean(-2, keepdim=True)
    left, _, right = torch.linalg.svd(centred.mT @ reference)
    proper = torch.linalg.det(left @ right).sign()  # no reflections
    signs = torch.stack([torch.ones_like(proper), torch.ones_like(proper), proper], -1)
    return centred @ (left * signs[..., None, :]) @ right


def load():
    """Return coordinates less their mean, ``(98, 642)`` in Å, superposed to the first snapshot."""
    positions = torch.as_tensor(datasets.adenylate_kinase())
    x = superposed(positions, positions[0]).flatten(-2)
    return x - x.mean(0)


def components(x, rank=2):
    """Return the leading principal axes of rows, from their products: they are fewer than the columns."""
    x = x - x.mean(-2, keepdim=True)
    _, weights = torch.linalg.eigh(x @ x.mT)
    axes = x.mT @ weights[..., -rank:].flip(-1)
    return axes / axes.norm(dim=-2, keepdim=True)


def by_mdanalysis(rank=2, **run):
    """Return the principal components by MDAnalysis, ``(642, rank)``."""
    from MDAnalysis.analysis.pca import PCA

    found = PCA(datasets.trajectory(), select="name CA", align=True).run(**run)
    return torch.as_tensor(found.results.p_components[:, :rank].copy())


def bootstrap(x, count=500):
    """Return components of blocks of successive rows, drawn with replacement, ``(count, 642, 2)``."""
    starts = torch.randint(len(x) - BLOCK + 1, (count, len(x) // BLOCK))
    rows = (starts[..., None] + torch.arange(BLOCK)).flatten(-2)
    return torch.stack([components(x[each]) for each in rows])


def posterior(x, draws, dependent):
    start = init_to_value(values={"U": components(x)})  # chains from elsewhere can remain at a direction of the noise
    mcmc = MCMC(OHMC(model, init_strategy=start), draws, draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(x, 2, dependent)
    return mcmc


def motions(U, x):
    """Return the principal axes of x within the span of U, which the signs, order and rotation of U do not change."""
    _, weights = torch.linalg.eigh((x @ U).mT @ (x @ U))
    return U @ weights.flip(-1)


def rmsip(U, V):
    return principal_angles(U, V).cos().square().mean(-1).sqrt()


def displacement(axes, x):
    """Return how far each residue moves from one end of motion 1 to the other, in Å, ``(..., 214)``."""
    scores = x @ axes[..., :1]
    extent = scores.amax((-2, -1)) - scores.amin((-2, -1))
    return axes[..., 0].unflatten(-1, (-1, 3)).norm(dim=-1) * extent[..., None]


def share_of_rows(U, x):
    return (x @ U).square().sum((-2, -1)) / x.square().sum()


def share_of_process(draws, size):
    """Return the share of the variance of the stationary process, (Σ s² + 2 σ²) / (Σ s² + 642 σ²)."""
    signal, noise = draws["scales"].square().sum(-1), draws["noise"].square()
    return (signal + draws["scales"].shape[-1] * noise) / (signal + size * noise)


def quantities(U, x, reference):
    """Return RMSIP and largest angle to reference components, and the share of the variance of the rows."""
    angles = principal_angles(U, reference)
    return {
        "RMSIP with the components of MDAnalysis": rmsip(U, reference),
        "largest principal angle, degrees": angles.amax(-1).rad2deg(),
        "share of the variance of the snapshots": share_of_rows(U, x),
    }


def interval(values, digits):
    return "{1:.{0}f} [{2:.{0}f}, {3:.{0}f}]".format(digits, *values.flatten().quantile(LIMITS)[[1, 0, 2]])


def report(fits, again, x, reference):
    """Print quantities with 94 % intervals, and R-hat and effective sizes of what is reported."""
    found = {name: quantities(draws["U"], x, reference) for name, draws in fits.items()}
    found["bootstrap"] = quantities(again, x, reference)
    print(f"\nmedian [94 % interval]: {', '.join(found)} of blocks")
    for name in found["bootstrap"]:
        digits = 1 if "degrees" in name else 3
        print(f"{name}: " + "   ".join(interval(values[name], digits) for values in found.values()))
    shares = [interval(share_of_process(draws, x.shape[-1]), 3) for draws in fits.values()]
    print("share of the variance of the process: " + "   ".join(shares))
    for name, draws in fits.items():
        entries = displacement(motions(draws["U"], x), x).numpy()
        scalars = [rmsip(draws["U"], reference).numpy(), *(entries[..., k] for k in range(0, entries.shape[-1], 5))]
        worst = max(float(arviz.rhat(each)) for each in scalars), min(float(arviz.ess(each)) for each in scalars)
        print(
            f"{name}: R-hat of RMSIP and displacements at most {worst[0]:.3f}, effective size at least {worst[1]:.0f}"
        )
    return found


def halves(x, draws):
    """Return RMSIP of pairs of draws within each half of the trajectory, and between both."""
    parts = [half - half.mean(0) for half in x.chunk(2)]
    first, second = (posterior(half, draws, True).get_samples()["U"] for half in parts)
    return {
        "within the first half": rmsip(first, first.roll(len(first) // 2, 0)),
        "within the second half": rmsip(second, second.roll(len(second) // 2, 0)),
        "between the halves": rmsip(first, second),
    }


def report_of_halves(pairs):
    half = by_mdanalysis(stop=49), by_mdanalysis(start=49)
    print(f"\nRMSIP of the halves by MDAnalysis: {rmsip(*half):.3f}; of draws of the autoregression:")
    for name, values in pairs.items():
        print(f"{name}: {interval(values, 3)}")


def simulated(draws, length):
    """Return the span and rows ``(length, 642)`` of the autoregression at one draw of its parameters."""
    U, size = draws["U"], draws["U"].shape[-2]
    noise, z = torch.randn(length, size), torch.randn(length, U.shape[-1])
    deviations = (draws["noise"].expand(size), (draws["scales"] ** 2 + draws["noise"] ** 2).sqrt())
    for values, deviation, phi in zip((noise, z), deviations, (draws["phi_noise"], draws["phi"]), strict=True):
        for t in range(1, length):
            values[t] = phi * values[t - 1] + (1 - phi**2).sqrt() * values[t]
        values *= deviation
    x = noise - noise @ U @ U.mT + z @ U.mT
    return U, x - x.mean(0)


def coverage(draws, length, count, few):
    """Return shares of residues whose interval contains their displacement, in simulated data, ``{name: (count,)}``."""
    found = {name: [] for name in COLOURS}
    for k in torch.randint(len(draws["noise"]), (count,)).tolist():
        U, x = simulated({name: values[k] for name, values in draws.items()}, length)
        spans = {name: posterior(x, few, name == "autoregression").get_samples()["U"] for name in list(COLOURS)[:2]}
        truth = displacement(motions(U, x), x)
        for name, span in (spans | {"bootstrap": bootstrap(x, 300)}).items():
            low, _, high = displacement(motions(span, x), x).quantile(LIMITS, 0)
            found[name].append(((low < truth) & (truth < high)).double().mean())
    return {name: torch.stack(shares) for name, shares in found.items()}


def figure(fits, again, x, reference):
    fig, ax = plt.subplots(figsize=(11, 4.2), layout="tight")
    residues = np.arange(1, x.shape[-1] // 3 + 1)
    spans = {"bootstrap": again} | {name: draws["U"].flatten(0, 1) for name, draws in fits.items()}
    for (name, span), alpha in zip(spans.items(), (0.3, 0.6, 0.9), strict=True):  # the widest behind
        low, _, high = displacement(motions(span, x), x).quantile(LIMITS, 0).numpy()
        label = "bootstrap of blocks" if name == "bootstrap" else name
        ax.fill_between(residues, low, high, color=COLOURS[name], alpha=alpha, lw=0, label=label)
    ax.plot(residues, displacement(reference, x), color="black", lw=0.6, label="MDAnalysis")
    top = 1.12 * float(displacement(reference, x).max())
    for name, (first, last) in DOMAINS.items():
        ax.axvspan(first, last, color="0.93", zorder=0, lw=0)
        ax.text((first + last) / 2, 0.97 * top, name, ha="center", va="top", color="0.35", fontsize=12)
    ax.set(xlim=(1, residues[-1]), ylim=(0, top), xlabel="residue", ylabel="displacement (Å)")
    ax.set_title("Motion 1: displacement of each Cα atom from one end to the other, with 94 % intervals")
    ax.legend(frameon=False, loc="upper right")
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def histogram(ax, draws, low, colour, label):
    counts, edges = np.histogram(draws, np.linspace(low, 1, 121))
    ax.stairs(counts / counts.max(), edges, fill=True, color=colour, alpha=0.7, label=label)  # each of height 1


def figure_of_spans(found, pairs):
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.2), layout="tight")
    for name, values in found.items():
        draws = values["RMSIP with the components of MDAnalysis"].flatten().numpy()
        histogram(left, draws, 0.8, COLOURS[name], name)
    left.set_title("RMSIP with the components of MDAnalysis")
    for (name, draws), colour in zip(pairs.items(), ("#56B4E9", "#009E73", "black"), strict=True):
        histogram(right, draws.numpy(), 0.4, colour, name)
    right.set_title("RMSIP of two draws, halves of the trajectory")
    for ax in (left, right):
        ax.set(yticks=[], xlabel="RMSIP")
        ax.legend(frameon=False, loc="upper left" if ax is left else "upper center")
        ax.spines[["top", "right", "left"]].set_visible(False)
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=1_000)
    parser.add_argument("--simulated", type=int, default=2, help="data sets simulated from the posterior")
    arguments = gallery.begin(parser, argv)

    x, reference = load(), by_mdanalysis()
    fits = {}
    for name in ("autoregression", "independent"):
        mcmc = posterior(x, arguments.draws, name == "autoregression")
        if name == "autoregression":
            mcmc.summary(max_rows=16)
        fits[name] = mcmc.get_samples(group_by_chain=True)
    again = bootstrap(x)
    found = report(fits, again, x, reference)
    pairs = halves(x, arguments.draws // 4)
    report_of_halves(pairs)
    draws = {name: values.flatten(0, 1) for name, values in fits["autoregression"].items()}
    shares = coverage(draws, len(x), arguments.simulated, max(arguments.draws // 5, 20))
    print(f"\nshare of displacements inside their 94 % interval, {arguments.simulated} simulated trajectories")
    for name, values in shares.items():
        print(f"{name}: {100 * values.mean():.0f} %, {100 * values.min():.0f} to {100 * values.max():.0f} %")
    pictures = {"": figure(fits, again, x, reference), "_spans": figure_of_spans(found, pairs)}
    gallery.write(arguments.output, {f"protein_motions{part}": each for part, each in pictures.items()})
    return fits, found, pairs, shares


if __name__ == "__main__":
    main()
