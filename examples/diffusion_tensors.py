"""Diffusion tensors of a slice of a brain: a plate of orthonormal matrices with a hierarchy over voxels.

Water diffuses faster along nerve fibres than across. The signal of a voxel with gradients in direction g and weighting
b is S₀ exp(−b gᵀDg) with noise, for a covariance matrix D, the diffusion tensor:

    D_v = U_v diag(λ_v) U_vᵀ,   U_v uniform on V(3, 3),   log λ_v ~ N(m, s² 11ᵀ + t² I),

so that D_v is positive definite, and m, s and t are common to all voxels. The field fits each voxel by weighted least
squares on log signals, here DIPY's, with a wild bootstrap for cones of uncertainty of the principal direction.

    python -m examples.diffusion_tensors --output results

prints the summary, fractional anisotropies and cones by both methods, for all 64 directions and for 12, and writes two
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
from dipy.core.gradients import gradient_table
from dipy.reconst.dti import TensorModel
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from examples import datasets, gallery
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

SHOWN = {"fibres": (5, 7), "tissue": (2, 0), "liquid": (5, 2)}


def model(signal, b, directions):
    size = pyro.sample("size", dist.Normal(0.0, 0.5))
    spread = pyro.sample("spread", dist.LogNormal(-1.0, 0.5).expand([2]).to_event(1))  # of sizes, and of shapes
    noise = pyro.sample("noise", dist.LogNormal(3.0, 1.0))
    with pyro.plate("voxels", len(signal)):
        intensity = pyro.sample("intensity", dist.LogNormal(5.0, 1.0))  # geometric mean over directions, at b = 1
        axes = pyro.sample("axes", StiefelUniform(3, 3))
        mean, factor = size[..., None, None] * torch.ones(3), spread[..., None, :1, None] * torch.ones(3, 1)
        logs = dist.LowRankMultivariateNormal(mean, factor, spread[..., None, 1:] ** 2 * torch.ones(3))
        diffusivity = pyro.sample("log_diffusivity", logs).exp()
        along = ((directions @ axes) ** 2 @ diffusivity[..., None])[..., 0]  # gᵀDg in µm²/ms
        expected = intensity[..., None] * torch.exp(diffusivity.mean(-1, keepdim=True) - b * along)
        pyro.sample("signal", dist.Normal(expected, noise[..., None, None]).to_event(1), obs=signal)


def load():
    """Return signals ``(100, 65)`` of a slice of 10×10 voxels, b ``(65,)`` and directions ``(65, 3)``."""
    signal, b, directions = map(torch.as_tensor, datasets.diffusion())
    return signal.flatten(0, 1), b, directions


def spread_out(directions, count):
    """Return the image without gradients, and images of the directions farthest apart, chosen one after the other."""
    chosen = [0, 1]
    while len(chosen) <= count:
        cosine = (directions @ directions[chosen].T).abs().amax(-1)
        chosen.append(int(cosine[1:].argmin()) + 1)
    return torch.tensor(chosen)


def anisotropy(eigenvalues):
    """Return the fractional anisotropy, 0 for a sphere and 1 for a line."""
    deviation = eigenvalues - eigenvalues.mean(-1, keepdim=True)
    return (1.5 * deviation.square().sum(-1) / eigenvalues.square().sum(-1)).sqrt()


def posterior(signal, b, directions, draws):
    """Return the fitted MCMC, anisotropies ``(draws, 100)`` and principal directions ``(draws, 100, 3)``."""
    mcmc = MCMC(OHMC(model), draws, draws, num_chains=4, disable_progbar=True)
    mcmc.run(signal, b, directions)
    sites = mcmc.get_samples()
    largest = sites["log_diffusivity"].argmax(-1)[..., None, None].expand(-1, -1, 3, 1)
    return mcmc, anisotropy(sites["log_diffusivity"].exp()), sites["axes"].gather(-1, largest)[..., 0]


def least_squares(signal, b, directions, copies=200):
    """Return DIPY's eigenvalues and eigenvectors, and principal directions of a wild bootstrap."""
    gradients = gradient_table(1000 * b.numpy(), bvecs=directions.numpy())
    tensors = TensorModel(gradients, fit_method="WLS", return_S0_hat=True)
    signal = signal.numpy().clip(1.0)  # logarithms; one entry of the slice is 0
    fit = tensors.fit(signal)
    expected = fit.predict(gradients, S0=fit.S0_hat)
    errors = np.log(signal / expected) * np.sqrt(len(b) / (len(b) - 7))
    signs = np.random.default_rng(0).choice([-1, 1], (copies, *signal.shape))
    again = tensors.fit(expected * np.exp(signs * errors)).evecs[..., 0]
    return tuple(map(torch.as_tensor, (1000 * fit.evals, fit.evecs, again)))


def cones(directions):
    """Return the main axis of directions ``(draws, voxels, 3)``, and the angle from it that 94 % are within."""
    axis = torch.linalg.eigh(torch.einsum("dvi,dvj->vij", directions, directions))[1][..., -1]
    cosine = torch.einsum("dvi,vi->dv", directions, axis).abs().clamp(max=1)
    return axis, cosine.acos().rad2deg().quantile(0.94, dim=0)


def report(fits):
    for name, (found, first, values, _, again) in fits.items():
        cone, bootstrap = cones(first)[1], cones(again)[1]
        print(f"\n{name}: voxels in which DIPY has an eigenvalue of zero: {int((values[:, -1] < 1e-4).sum())}")
        for place, (i, j) in SHOWN.items():
            k = 10 * i + j
            low, middle, high = found[:, k].quantile(torch.tensor([0.03, 0.5, 0.97]))
            print(
                f"{place:7s} anisotropy {middle:.2f} [{low:.2f}, {high:.2f}], DIPY {anisotropy(values)[k]:.2f}; "
                f"94 % cone ± {cone[k]:2.0f}°, bootstrap ± {bootstrap[k]:2.0f}°"
            )


def compare(few, rest):
    """Print errors of fits to few images, by DIPY's fit to the other images."""
    found, first, values, axis, _ = few
    reference, other, _ = rest
    clear = anisotropy(reference) > 0.4
    main = cones(first)[0]
    print("\nby DIPY's fit to the other images:")
    for name, estimate, line in (("posterior mean", found.mean(0), main), ("DIPY", anisotropy(values), axis[..., 0])):
        error = estimate - anisotropy(reference)
        turn = (line * other[..., 0]).sum(-1).abs().clamp(max=1).acos().rad2deg()[clear].median()
        print(
            f"{name:15s} anisotropy: root mean square error {error.square().mean().sqrt():.3f}, mean error "
            f"{error.mean():+.3f}\n{'':15s} direction, where anisotropy > 0.4: median error {turn:.1f}°"
        )


def figure_of_maps(fits):
    """Draw anisotropies by both methods, and the principal direction in the slice, coloured by its cone."""
    found, first, values, _, _ = next(iter(fits.values()))
    axis, cone = cones(first)
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.7), width_ratios=[1, 1, 1.15], layout="constrained")
    maps = {"anisotropy, posterior mean": found.mean(0), "its standard deviation": found.std(0)}
    for ax, (title, values), largest in zip(axes, maps.items(), (1, 0.15), strict=False):
        shown = ax.imshow(values.reshape(10, 10).numpy(), vmin=0, vmax=largest, cmap="gray")
        fig.colorbar(shown, ax=ax, shrink=0.75)
        ax.set_title(title, fontsize="medium")
    rows, columns = np.divmod(np.arange(100), 10)
    options = {"pivot": "middle", "headwidth": 0, "headlength": 0, "headaxislength": 0, "width": 0.012, "scale": 11}
    lines = axes[2].quiver(columns, rows, axis[:, 1], -axis[:, 0], cone, cmap="viridis_r", clim=(0, 90), **options)
    fig.colorbar(lines, ax=axes[2], shrink=0.75, label="94 % cone (± degrees)")
    axes[2].set_title("principal direction", fontsize="medium")
    axes[2].set(aspect="equal", xlim=(-0.6, 9.6), ylim=(9.6, -0.6))
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    for number, (i, j) in enumerate(SHOWN.values()):
        axes[0].text(j, i, "ABC"[number], color="#D55E00", ha="center", va="center", fontweight="bold")
    return fig


def sphere(ax):
    """Draw a faint unit sphere; its lines of latitude and longitude show on which side a point is."""
    around, down = torch.linspace(0, 2 * torch.pi, 25), torch.linspace(0, torch.pi, 13)[:, None]
    x, y, z = down.sin() * around.cos(), down.sin() * around.sin(), down.cos().expand(-1, 25)
    ax.plot_wireframe(x.numpy(), y.numpy(), z.numpy(), color="0.88", lw=0.5, zorder=0)
    limits, ticks = (-1.15, 1.15), [-1, 0, 1]
    ax.set(xlim=limits, ylim=limits, zlim=limits, xticks=ticks, yticks=ticks, zticks=ticks)
    for k, axis in enumerate((ax.xaxis, ax.yaxis, ax.zaxis), 1):
        axis.set_label_text(f"row {k}")
        axis.pane.set_visible(False)
        axis.labelpad = -4
    ax.set_box_aspect((1, 1, 1), zoom=1.1)
    ax.grid(False)
    ax.tick_params(pad=-1, labelsize="small")


def plot_cone(ax, directions):
    """Plot directions ``(draws, 3)`` on the sphere, on both sides, their main axis, and the cone with 94 % of them."""
    axis, degrees = (found[0] for found in cones(directions[:, None]))
    first, second = torch.linalg.svd(axis[None])[2][1:]  # at right angles to the axis
    half, around = degrees.deg2rad(), torch.linspace(0, 2 * torch.pi, 61)[:, None]
    rim = half.cos() * axis + half.sin() * (around.cos() * first + around.sin() * second)
    faces = torch.stack([torch.zeros(60, 3), rim[:-1], rim[1:]], 1)
    shown = directions[:: max(1, len(directions) // 300)]
    sphere(ax)
    ax.computed_zorder = False  # all parts are transparent, and none may hide another
    ax.scatter(*torch.cat([shown, -shown]).T, s=6, color="#0072B2", alpha=0.5, linewidths=0, zorder=2, label="draws")
    ax.plot(*torch.stack([-axis, axis], -1), color="#D55E00", lw=2, zorder=3, label="mean line")
    faces, label = torch.cat([faces, -faces]).numpy(), f"94 % cone: ± {degrees:.2g}°"
    ax.add_collection3d(Poly3DCollection(faces, facecolor="#0072B2", alpha=0.2, linewidths=0, zorder=1, label=label))
    for side in (rim, -rim):
        ax.plot(*side.T, color="#0072B2", lw=1, zorder=2)
    options = {"fontsize": "small", "columnspacing": 1.0, "ncols": 2}
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), borderaxespad=0, **options)


def figure_of_cones(first):
    fig, axes = plt.subplots(1, 3, figsize=(11, 4.2), subplot_kw={"projection": "3d"})
    for number, (ax, (name, (i, j))) in enumerate(zip(axes, SHOWN.items(), strict=True)):
        plot_cone(ax, first[:, 10 * i + j])
        ax.set_title(f"{'ABC'[number]}: {name}")
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=1_000, warmup="as many")
    parser.add_argument("--images", type=int, default=12, help="directions of the second fit")
    arguments = gallery.begin(parser, argv)

    signal, b, directions = load()
    chosen = spread_out(directions, arguments.images)
    others = torch.tensor([k for k in range(len(b)) if k == 0 or k not in chosen])
    fits = {}
    for name, images in (("all 64 directions", torch.arange(len(b))), (f"{arguments.images} directions", chosen)):
        data = signal[:, images], b[images], directions[images]
        mcmc, *found = posterior(*data, arguments.draws)
        if not fits:
            mcmc.summary()
        fits[name] = *found, *least_squares(*data)
    report(fits)
    compare(fits[name], least_squares(signal[:, others], b[others], directions[others]))
    first, second = figure_of_maps(fits), figure_of_cones(fits["all 64 directions"][1])
    pictures = {"diffusion_tensors": first, "diffusion_tensors_cones": second}
    gallery.write(arguments.output, pictures, cut=["diffusion_tensors_cones"])
    return fits


if __name__ == "__main__":
    main()
