"""Draw the pictures of the documentation into docs/images: `make figures` runs it."""

import sys
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value
from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # problems and examples are not installed

from examples import (
    bayesian_pca,
    calibrated_network,
    canonical_correlations,
    cointegration,
    collinear_regression,
    datasets,
    diffusion_tensors,
    envelope,
    equity_factors,
    independent_components,
    mental_tests,
    protein_motions,
    reduced_rank,
    sea_surface,
    social_networks,
    sparse_inputs,
    vectorcardiograms,
)
from problems.monte_carlo import standard_error
from problems.noisy_gradients import exact_variance
from problems.phase_space import System, WrongEnergy, WrongMomentum, langevin_bingham
from problems.targets import LANGEVIN
from pyro_manifold.diagnostics import (
    align_signs_and_permutations,
    plot_biplot,
    plot_loadings,
    plot_scree,
)
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, MSD, OHMC, Predictive, calibrate
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics
from pyro_manifold.manifolds import Stiefel
from pyro_manifold.nn import to_bayesian_

IMAGES = Path(__file__).parent / "images"
TITLES = ("as sampled", "aligned")
PROBABILITY = 0.94  # of intervals and ellipses: that of the pages, not of the installed ArviZ
PAIRINGS = {"OHMC": CayleyMechanics(), "momentum Z − XZᵀX": WrongMomentum(), "energy ½‖r‖²": WrongEnergy()}


def save(fig, name, **options):
    fig.tight_layout()
    fig.savefig(IMAGES / name, dpi=110, **options)
    plt.close(fig)


def langevin_system(mechanics):
    F = torch.as_tensor(LANGEVIN["V(3,2)"].F)
    return System(langevin_bingham(F, torch.zeros(3, 3), torch.zeros(2, 2)), {("X",): mechanics})


def pairings():
    target = LANGEVIN["V(3,2)"]
    truth, _ = target.expectation()
    fig, axes = plt.subplots(figsize=(7, 2.6))
    for row, mechanics in enumerate(PAIRINGS.values()):
        system = langevin_system(mechanics)
        state = system.state({("X",): Stiefel().random_point(500, 3, 2)})
        draws, acceptance = system.sample(state, 0.25, 6, iterations=200, burn_in=50)
        values = target.statistic(draws[("X",)])
        axes.errorbar(values.mean(), -row, xerr=4 * standard_error(values), fmt="o", color="#0072B2", capsize=3)
        axes.annotate(f"{acceptance:.2f}", (1.02, -row), xycoords=axes.get_yaxis_transform(), va="center")
    axes.axvline(truth, color="#D55E00", zorder=0)
    above = axes.get_xaxis_transform()
    axes.annotate(f"truth {truth:.3f}", (truth, 1.04), xycoords=above, ha="center", color="#D55E00")
    axes.annotate("acceptance", (1.02, 1.04), xycoords="axes fraction")
    axes.set_yticks([0, -1, -2], PAIRINGS)
    axes.set(xlim=(1.0, 3.3), ylim=(-2.6, 0.6), xlabel="estimate of E tr FᵀX on V(3,2), ± 4 standard errors")
    axes.spines[["top", "right"]].set_visible(False)
    save(fig, "pairings.png")


def order():
    fig, axes = plt.subplots(figsize=(5.5, 3.4))
    steps = torch.tensor([16, 32, 64, 128, 256])
    for name in ("OHMC", "energy ½‖r‖²"):
        system = langevin_system(PAIRINGS[name])
        state = system.state({("X",): Stiefel().random_point(64, 3, 2)})
        errors = [
            (system.energy(system.integrate(state, 1 / k, int(k))) - system.energy(state)).abs().mean() for k in steps
        ]
        axes.loglog(1 / steps, errors, "o-", label=name)
    axes.loglog(1 / steps, 0.3 / steps**2.0, ":", color="0.5", label="ε²")
    axes.set(xlabel="step size ε", ylabel="mean |ΔH| after time 1")
    axes.set_xticks(1 / steps, [f"1/{k}" for k in steps])
    axes.minorticks_off()
    axes.legend(frameon=False)
    save(fig, "order.png")


def langevin():
    fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), subplot_kw={"projection": "3d"})
    for panel, concentration in zip(axes, (1.0, 8.0, 60.0), strict=True):
        F = torch.zeros(3, 2)
        F[0, 0] = F[1, 1] = concentration
        X = MatrixLangevin(F).sample((400,))
        for column, colour in ((0, "#0072B2"), (1, "#D55E00")):
            panel.scatter(*X[:, :, column].T, s=3, color=colour, depthshade=True)
        panel.set(title=f"F = {concentration:g} · [e₁, e₂]", box_aspect=(1, 1, 1))
        panel.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1), xticks=[-1, 1], yticks=[-1, 1], zticks=[-1, 1])
    save(fig, "langevin.png")


def alignment():
    F = torch.zeros(3, 2)
    F[0, 0] = F[1, 1] = 30.0
    draws = MatrixLangevin(F).sample((4, 250)) * torch.tensor([1.0, -1.0])[torch.randint(2, (4, 250, 1, 2))]
    draws[2:] = draws[2:].flip(-1)
    fig, axes = plt.subplots(1, 2, figsize=(8, 3.9), subplot_kw={"projection": "3d"})
    for ax, values, title in zip(axes, (draws, align_signs_and_permutations(draws).draws), TITLES, strict=True):
        diffusion_tensors.sphere(ax)
        for k, colour in enumerate(("#0072B2", "#D55E00")):
            points = values[..., k].flatten(0, 1)
            ax.scatter(*points[::4].T, s=9, color=colour, alpha=0.75, linewidths=0, label=f"column {k + 1}")
            ax.quiver(0, 0, 0, *points.mean(0), color=colour, lw=2, arrow_length_ratio=0.12)
        ax.set_title(title)
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=2, markerscale=2)
        ax.view_init(elev=25, azim=35)
    save(fig, "alignment.png")


def ridge(noise=0.15):
    """A curved ridge, w₀ + w₁² = 1 ± noise under standard normal priors."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(w[0] + w[1] ** 2, noise), obs=torch.tensor(1.0))


def one_path(kernel, draws):
    """Consecutive draws of one chain, from the left end of the ridge."""
    torch.manual_seed(1)
    mcmc = MCMC(kernel, draws, warmup_steps=0, num_chains=1, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples()["w"]


def metric():
    """One leapfrog step a draw, persistence 0.95, with the metric of the model and with none."""
    initial = init_to_value(values={"w": torch.tensor([-1.2, -1.5])})
    common = {"model": ridge, "persistence": 0.95, "metropolis": True, "init_strategy": initial}
    flat = MSD(step_size=0.06, metric=lambda sites: sites["w"], **common)
    curved = MSD(step_size=0.2, **common)
    grid = torch.stack(torch.meshgrid(torch.linspace(-3.4, 2, 300), torch.linspace(-2.3, 2.3, 300), indexing="ij"))
    height = -0.5 * (grid.square().sum(0) + ((1 - grid[0] - grid[1] ** 2) / 0.15).square())
    fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True)
    for panel, (title, kernel) in zip(axes, {"no metric": flat, "MSD": curved}.items(), strict=True):
        w = one_path(kernel, 300)
        panel.contour(*grid, height, levels=[-8, -4.5, -2, -0.5], colors="0.75", linewidths=0.8, linestyles="solid")
        panel.plot(w[:, 0], w[:, 1], ".-", color="#0072B2", markersize=3, linewidth=0.6)
        panel.set(title=f"{title}, 300 draws", xlabel="w₀")
    for second in torch.tensor([-1.6, -0.8, 0.0, 0.8, 1.6]):
        place = torch.stack([1 - second**2, second])
        slope = torch.stack([torch.tensor(1.0), 2 * second]) / 0.15
        root = torch.linalg.inv(torch.linalg.cholesky(torch.outer(slope, slope) + torch.eye(2))).mT
        angle = torch.linspace(0, 2 * torch.pi, 80)
        ellipse = place[:, None] + 0.5 * root @ torch.stack([angle.cos(), angle.sin()])
        axes[1].plot(*ellipse, color="#D55E00", linewidth=1)
    axes[0].set_ylabel("w₁")
    save(fig, "metric.png")


def stochastic_bias():
    """Bias of the variance of a standard normal number, exactly, in units of ε², its order."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 3))
    sizes = torch.logspace(-2, -0.1, 60).tolist()
    for panel, noise in zip(axes, (0.0, 1.0, 3.0), strict=True):
        for integrator, colour in {"splitting": "#0072B2", "euler": "#D55E00", "SGLD": "#009E73"}.items():
            bias = [(exact_variance(integrator, size, noise, 0.1) - 1) / size**2 for size in sizes]
            style = (0, (3, 3)) if integrator == "euler" else "solid"  # where two lines lie on each other
            panel.semilogx(sizes, bias, color=colour, label=integrator, linestyle=style, linewidth=1.8)
        panel.set(title=f"noise {noise:g}", xlabel="ε", ylim=(-0.03 * panel.get_ylim()[1], None))
    axes[0].set_ylabel("bias of the variance / ε²")
    axes[0].legend(frameon=False)
    save(fig, "stochastic_bias.png")


def wine(mcmc):
    """Plots of loadings and scores of the example."""
    y, names, cultivar = bayesian_pca.load()
    draws = mcmc.get_samples(group_by_chain=True, align=True)
    save(plot_loadings(draws["loadings"], names, ["axis 1", "axis 2"]).figure, "loadings.png")
    groups = [f"cultivar {kind + 1}" for kind in cultivar.tolist()]
    ax = plot_biplot(draws["loadings"], bayesian_pca.scores(y, draws), names, groups, prob=PROBABILITY)
    save(ax.figure, "biplot.png", bbox_inches="tight")


def scree():
    """Bayesian PCA of the wines with five columns."""
    y, _, _ = bayesian_pca.load()
    mcmc = MCMC(OHMC(bayesian_pca.model), 500, 500, num_chains=4, disable_progbar=True)
    mcmc.run(y, 5)
    draws = mcmc.get_samples(group_by_chain=True, align=True)
    save(plot_scree(draws["scales"], draws["noise"], prob=PROBABILITY).figure, "scree.png")


def pca(rows, spread, y=None):
    """Principal components of 13 measurements, with the prior whose spread the page on priors chooses."""
    U = pyro.sample("U", StiefelUniform(13, 2))
    scales = pyro.sample("scales", dist.HalfNormal(spread).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    factor, diagonal = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(13)
    with pyro.plate("rows", rows):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(13), factor, diagonal), obs=y)


def correlations(y):
    """Correlations of all pairs of measurements of each data set."""
    above = torch.triu_indices(13, 13, 1)
    return torch.stack([torch.corrcoef(each.T)[above[0], above[1]] for each in y])


def prior_correlations():
    y, _, _ = bayesian_pca.load()
    bins = torch.linspace(-1, 1, 33).numpy()
    fig, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True)
    for ax, spread in zip(axes, (1.0, 3.0, 10.0), strict=True):
        drawn = Predictive(pca, num_samples=300, parallel=True)(len(y), spread)["y"]
        ax.hist(correlations(drawn).flatten().numpy(), bins, density=True, color="#56B4E9", label="prior")
        ax.hist(
            correlations(y[None])[0].numpy(), bins, density=True, histtype="step", color="#D55E00", label="wine data"
        )
        ax.set(title=f"scales ~ HalfNormal({spread:g})", xlabel="correlation of two measurements", xlim=(-1, 1))
        ax.set_yticks([])
        ax.spines[["top", "right", "left"]].set_visible(False)
    axes[0].legend(frameon=False, loc="upper left", fontsize=8, borderaxespad=0, handlelength=1)
    save(fig, "prior_correlations.png")


def prior_functions():
    x = torch.linspace(-3, 3, 301).unsqueeze(-1)
    settings = {
        "default": (1, {}),
        "gain=20": (1, {"gain": 20.0}),
        "bias_scale=3": (1, {"bias_scale": 3.0}),
        "prior_scale=0.25": (1, {"prior_scale": 0.25}),
        "three hidden layers": (3, {}),
        "three hidden layers, gain=2": (3, {"gain": 2.0}),
    }
    fig, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True)
    for ax, (title, (depth, options)) in zip(axes.flat, settings.items(), strict=True):
        hidden = [layer for k in range(depth) for layer in (nn.Linear(16 if k else 1, 16), nn.Tanh())]
        network = to_bayesian_(nn.Sequential(*hidden, nn.Linear(16, 1)), **options)
        for k in range(12):
            ax.plot(x, network(x).detach(), lw=1, color=f"C{k % 10}")
        ax.set_title(title)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set(xlim=(-3, 3), ylim=(-12, 12))
    for ax in axes[1]:
        ax.set_xlabel("input")
    for ax in axes[:, 0]:
        ax.set_ylabel("output")
    save(fig, "prior_functions.png")


def components(y, power=2):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 0.5))
    factor, diagonal = U * scales[..., None, :], noise[..., None] ** power * torch.ones(4)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), factor, diagonal), obs=y)


def calibration_of_components():
    """The model of how_to/calibrate.md, and a mistaken one with the noise where its square belongs."""
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.8), sharey=True)
    common = {"simulate": components, "num_datasets": 200, "vectorized": True}
    for ax, (title, power) in zip(axes, {"the right model": 2, "noise instead of noise²": 1}.items(), strict=True):
        pyro.set_rng_seed(0)
        result = calibrate(partial(components, power=power), OHMC, torch.zeros(10, 4), **common)
        p = f"p = {result.p_value:.2g}" if result.p_value > 1e-12 else "p < 10⁻¹²"
        result.plot(["noise", "log likelihood"], ax=ax).set_title(f"{title}, {p}")
    axes[1].set_ylabel("")
    save(fig, "calibrate.png")


def main():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    IMAGES.mkdir(exist_ok=True)
    pairings()
    order()
    langevin()
    alignment()
    metric()
    stochastic_bias()
    scree()
    prior_correlations()
    prior_functions()
    wine(bayesian_pca.main(["--output", str(IMAGES)]))
    (IMAGES / "bayesian_pca.nc").unlink()
    gallery = (
        mental_tests,
        equity_factors,
        sea_surface,
        cointegration,
        reduced_rank,
        canonical_correlations,
        independent_components,
        social_networks,
        vectorcardiograms,
        diffusion_tensors,
        calibrated_network,
        sparse_inputs,
    )
    for example in (collinear_regression, *gallery):
        example.main(["--output", str(IMAGES)])
    calibration_of_components()
    try:
        datasets.wheat_protein()
    except RuntimeError as error:
        print(f"The pictures of envelope.md are left as they are. {error}")
    else:
        envelope.main(["--output", str(IMAGES)])
    try:
        datasets.trajectory()
    except RuntimeError as error:
        print(f"The pictures of protein_motions.md are left as they are. {error}")
    else:
        protein_motions.main(["--output", str(IMAGES)])


if __name__ == "__main__":
    main()
