"""Orientations of hearts by two systems of electrodes: regression between rotations.

The vectorcardiogram of a heartbeat is a loop in space, whose longest direction and plane are an orientation. Downs,
Liebman & Mackay (1974) measured 98 children with the electrodes of Frank (X) and of McFee (Y). The systems differ by a
rotation T, which may depend on age and sex (Prentice 1989), and a few children are outliers of any orientation:

    Y_i ~ MatrixFisher(T X_i diag(c)),   T_group ~ MatrixFisher(100 · common),   common uniform on SO(3).

    python -m examples.vectorcardiograms --output results

prints the summary, the rotations and those of SciPy, and writes two pictures.
"""

import warnings
from itertools import combinations

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.spatial.transform import Rotation

from examples import datasets, gallery
from pyro_manifold.distributions import MatrixFisher, SpecialOrthogonalUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.manifolds import SpecialOrthogonal

GROUPS = ["boys 2–10", "boys 11–19", "girls 2–10", "girls 11–19"]
QUANTILES = torch.tensor([0.03, 0.5, 0.97], dtype=torch.float64)


def concentration(precision):
    """Return the c of `MatrixFisher` (diag(c)) whose rotations about axis j have the precision c_k + c_l, k, l ≠ j."""
    return precision.sum(-1, keepdim=True) / 2 - precision


def model(frank, mcfee, group):
    common = pyro.sample("common", SpecialOrthogonalUniform(3))
    with pyro.plate("groups", 4):
        turn = pyro.sample("turn", MatrixFisher(100 * common[..., None, :, :]))
    precision = pyro.sample("precision", dist.LogNormal(3.0, 1.0).expand([3]).to_event(1))
    outliers = pyro.sample("outliers", dist.Beta(1.0, 9.0))[..., None]
    residual = (turn[..., group, :, :] @ frank).mT @ mcfee  # a rotation in the axes of the loop
    fisher = MatrixFisher(torch.diag_embed(concentration(precision))[..., None, :, :])
    with pyro.plate("children", len(group)):
        log_density = fisher.log_prob(residual) + torch.log1p(-outliers)
        pyro.factor("mcfee", torch.logaddexp(log_density, outliers.log()))  # the uniform density is 1


def load():
    """Return the orientations by Frank and by McFee, rotations ``(98, 3, 3)``, and the group of each child."""
    frank, mcfee, group = map(torch.as_tensor, datasets.vectorcardiograms())
    return SpecialOrthogonal().projection(frank), SpecialOrthogonal().projection(mcfee), group


def rotvec(rotations):
    """Return rotation vectors in degrees: the axis times the angle."""
    vectors = Rotation.from_matrix(rotations.reshape(-1, 3, 3).numpy()).as_rotvec(degrees=True)
    return torch.as_tensor(vectors).reshape(rotations.shape[:-1])


def wahba(frank, mcfee):
    """Return SciPy's rotation, and the standard errors in degrees of its three components."""
    vectors = (rotations.mT.reshape(-1, 3).numpy() for rotations in (mcfee, frank))
    rotation, distance, sensitivity = Rotation.align_vectors(*vectors, return_sensitivity=True)
    variance = distance**2 / (2 * 3 * len(frank))  # of each of the two tangent directions of each vector
    return torch.as_tensor(rotation.as_matrix()), np.rad2deg(np.sqrt(variance * np.diagonal(sensitivity)))


def report(common, turn, data):
    """Print rotations of the groups and angles between them, return limits and medians, and SciPy's rotations."""
    frank, mcfee, group = data
    fits = [wahba(frank[group == k], mcfee[group == k]) for k in range(4)]
    vectors = torch.stack([rotvec(turn[:, k] @ fits[k][0].mT) + rotvec(fits[k][0]) for k in range(4)], 1)
    found = vectors.quantile(QUANTILES, dim=0)  # (3, groups, axes)
    print("\nrotation about x, y, z in degrees: posterior median, 94 % interval; SciPy ± 1.88 standard errors")
    for k, name in enumerate(GROUPS):
        (low, middle, high), (centre, errors) = found[:, k], fits[k]
        cells = (
            f"{middle[j]:5.1f} [{low[j]:5.1f}, {high[j]:5.1f}]; {rotvec(centre)[j]:5.1f} ± {1.88 * errors[j]:3.1f}"
            for j in range(3)
        )
        print(f"{name:12s} " + "   ".join(cells))
    centre = SpecialOrthogonal().projection(common.mean(0))
    size, radius = rotvec(centre).norm(), rotvec(common @ centre.mT).norm(dim=-1).quantile(0.94)
    print(f"common rotation: {size:.1f}°; 94 % of the draws are within {radius:.1f}° of their mean")
    for j, k in combinations(range(4), 2):
        low, middle, high = rotvec(turn[:, j].mT @ turn[:, k]).norm(dim=-1).quantile(QUANTILES)
        print(f"{GROUPS[j]} and {GROUPS[k]}: {middle:.1f}° apart [{low:.1f}, {high:.1f}]")
    return found, fits


def residuals(draws, frank, mcfee, group):
    """Return angles of residuals, ``(draws, children)``, those of new children, and the probability of an outlier."""
    residual = (draws["turn"][:, group] @ frank).mT @ mcfee
    fisher = MatrixFisher(torch.diag_embed(concentration(draws["precision"]))[:, None])
    share = draws["outliers"][:, None]
    outlier = share / (share + (1 - share) * fisher.log_prob(residual).exp())
    uniform, odd = SpecialOrthogonalUniform(3).sample(residual.shape[:2]), torch.rand(residual.shape[:2]) < share
    new = torch.where(odd[..., None, None], uniform, fisher.expand(residual.shape[:2]).sample())
    return rotvec(residual).norm(dim=-1), rotvec(new).norm(dim=-1), outlier.mean(0)


def figure_of_turns(found, fits):
    fig, axes = plt.subplots(1, 3, figsize=(10, 2.9), sharey=True)
    rows, (low, middle, high) = np.arange(4), found.numpy()
    for j, ax in enumerate(axes):
        ax.hlines(rows - 0.12, low[:, j], high[:, j], color="#0072B2", lw=2.5, label="posterior, 94 %")
        ax.plot(middle[:, j], rows - 0.12, "o", color="#0072B2", ms=4)
        centre, errors = [float(rotvec(fit)[j]) for fit, _ in fits], [1.88 * errors[j] for _, errors in fits]
        ax.errorbar(centre, rows + 0.12, xerr=errors, fmt="s", color="0.35", ms=4, label="SciPy, ± 1.88 s.e.")
        ax.set(xlabel=f"rotation about {'xyz'[j]} (degrees)", ylim=(3.5, -0.5))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(rows, GROUPS)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="lower center", ncols=2, fontsize="small")
    return fig


def figure_of_residuals(angles, new, outlier):
    fig, ax = plt.subplots(figsize=(8, 3.2))
    low, _, high = new.sort(-1).values.quantile(QUANTILES, dim=0).numpy()
    ranks, middle = np.arange(1, len(outlier) + 1), angles.median(0).values
    order = middle.argsort()
    ax.fill_between(ranks, low, high, color="#0072B2", alpha=0.2, lw=0, label="new children, 94 % interval")
    colours = {"c": outlier[order].numpy(), "cmap": "copper", "vmin": 0, "vmax": 1}
    fig.colorbar(ax.scatter(ranks, middle[order].numpy(), s=14, zorder=3, **colours), label="probability of an outlier")
    ax.set(xlabel="rank", ylabel="angle of the residual (degrees)", yscale="log", ylim=(1, 180))
    ax.set_yticks([1, 3, 10, 30, 90], ["1", "3", "10", "30", "90"])
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    return fig


def main(argv=None):
    arguments = gallery.begin(gallery.options(__doc__, draws=1_000), argv)

    data = load()
    mcmc = MCMC(OHMC(model), arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(*data)
    mcmc.summary()
    draws = mcmc.get_samples()
    found, fits = report(draws["common"], draws["turn"], data)
    angles, new, outlier = residuals({name: site[::10] for name, site in draws.items()}, *data)
    print(
        "likely outliers, median angle:",
        {k: round(float(angles[:, k].median())) for k in range(98) if outlier[k] > 0.5},
    )
    first, second = figure_of_turns(found, fits), figure_of_residuals(angles, new, outlier)
    gallery.write(arguments.output, {"vectorcardiograms": first, "vectorcardiograms_residuals": second})
    return found, fits, outlier


if __name__ == "__main__":
    main()
