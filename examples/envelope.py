"""Envelope regression of the reflectances of wheat on its protein content.

The mean of six correlated responses may differ between two groups along a few directions only, in which the errors
vary little: the envelope (Cook, Li & Chiaromonte 2010). With axes of the errors in the columns of an orthogonal Q,

    y_i ~ N(centre + Q₁ η x_i, Q diag(variances) Qᵀ),   Q uniform on the Stiefel manifold V(6, 6),

and Q₁ its first columns, errors along all other axes do not disturb the estimate of the effect Q₁ η.

    python -m examples.envelope --output results

prints the summary, effects and their standard deviations beside those of least squares and of the maximum likelihood
of the envelope, and the evidence of its dimension, and writes two pictures. The data are downloaded at the first call.
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
from pyro.infer.autoguide.initialization import init_to_value
from scipy.optimize import minimize

from examples import datasets, gallery
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence

WAVELENGTHS = [1680, 1806, 1932, 2058, 2184, 2310]


def model(y, x, dimension):
    n = y.shape[-1]
    axes = pyro.sample("axes", StiefelUniform(n, n))
    variances = pyro.sample("variances", dist.LogNormal(3.0, 3.0).expand([n]).to_event(1))
    expected = pyro.sample("centre", dist.Normal(0.0, 50.0).expand([n]).to_event(1))[..., None, :]
    if dimension:
        shift = pyro.sample("shift", dist.HalfNormal(10.0).expand([dimension]).to_event(1))
        effect = (axes[..., :dimension] * shift[..., None, :]).sum(-1)
        expected = expected + x[:, None] * effect[..., None, :]
    covariance = (axes * variances[..., None, :]) @ axes.mT
    with pyro.plate("samples", len(y)):
        pyro.sample("y", dist.MultivariateNormal(expected, covariance[..., None, :, :]), obs=y)


def load():
    """Return reflectances ``(50, 6)`` and the indicator of 9.75 % of protein or more ``(50,)``, without their means."""
    y, protein = (torch.as_tensor(values) for values in datasets.wheat_protein())
    high = (protein >= 9.75).double()
    return y - y.mean(0), high - high.mean()


def least_squares(y, x):
    """Return the effect ``(6,)`` and the covariance of the residuals ``(6, 6)``, by the maximum likelihood."""
    effect = x @ y / (x @ x)
    residuals = y - x[:, None] * effect
    return effect, residuals.T @ residuals / len(y)


def initial_values(y, x):
    """Return the axes of the residuals, that of the most significant effect first, with effects > 0, and variances."""
    effect, covariance = least_squares(y, x)
    variances, axes = torch.linalg.eigh(covariance)
    order = ((effect @ axes).square() / variances).argsort(descending=True)
    return {"axes": (axes * (effect @ axes).sign())[:, order], "variances": variances[order]}


def envelope(y, x):
    """Return the maximum likelihood of the effect for one dimension, and standard errors (Cook et al. 2010)."""
    effect, within = (each.numpy() for each in least_squares(y, x))
    total, (variances, axes) = (y.T @ y / len(y)).numpy(), np.linalg.eigh(within)
    scaled = axes / np.sqrt(variances)

    def objective(weights):
        g = scaled @ weights
        return np.log(g @ within @ g) + np.log(g @ np.linalg.solve(total, g)) - 2 * np.log(g @ g)

    best = min((minimize(objective, weights, method="BFGS") for weights in np.eye(6)), key=lambda found: found.fun)
    g = scaled @ best.x / np.linalg.norm(scaled @ best.x)
    rest = np.linalg.svd(g[:, None])[0][:, 1:]
    size, inside, outside, spread = g @ effect, g @ within @ g, rest.T @ total @ rest, float(x @ x) / len(y)
    inner = (size**2 * spread + inside) * np.linalg.inv(outside) + outside / inside - 2 * np.eye(5)
    covariance = inside / spread * np.outer(g, g) + size**2 * rest @ np.linalg.solve(inner, rest.T)
    return size * g, np.sqrt(np.diag(covariance) / len(y))


def figures(y, x, effects, axis):
    fig, ax = plt.subplots(figsize=(9, 3.2))
    for k, (name, (mean, deviation)) in enumerate(effects.items()):
        places, colour = np.arange(6) + 0.2 * (k - 1), ("0.5", "black", "#0072B2")[k]
        ax.errorbar(places, mean, 2 * np.asarray(deviation), fmt="o", ms=4, color=colour, capsize=2, label=name)
    ax.axhline(0, color="0.85", lw=1, zorder=0)
    ax.set_xticks(range(6), [f"{each} nm" for each in WAVELENGTHS])
    ax.set(ylabel="effect of high protein", title="Effects ± 2 standard deviations", ylim=(-30, 45))
    ax.legend(frameon=False, fontsize="small", ncols=3)
    second, panels = plt.subplots(1, 2, figsize=(9, 3.2))
    first_axis = torch.linalg.eigh(least_squares(y, x)[1])[1][:, -1]
    for panel, (name, scores) in zip(panels, {"envelope": y @ axis, "first axis": y @ first_axis}.items(), strict=True):
        groups = {"low protein": scores[x < 0].numpy(), "high protein": scores[x > 0].numpy()}
        panel.hist(groups.values(), 15, color=["#0072B2", "#D55E00"], label=groups.keys())
        panel.set(title=f"{name}: variance {scores.var():.0f}", xlabel="score", ylabel="samples")
    panels[0].legend(frameon=False, fontsize="small")
    for each in (fig, second):
        each.tight_layout()
    return fig, second


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--dimensions", type=int, nargs="*", default=[0, 1, 2, 3, 6], help="to compare")
    parser.add_argument("--particles", type=int, default=1_024)
    arguments = gallery.begin(parser, argv)

    y, x = load()
    kernel = OHMC(model, init_strategy=init_to_value(values=initial_values(y, x)))
    mcmc = MCMC(kernel, arguments.draws, arguments.draws // 2, num_chains=4, disable_progbar=True)
    mcmc.run(y, x, dimension=1)
    mcmc.summary(max_rows=6)
    draws = mcmc.get_samples()
    effect = draws["axes"][..., 0] * draws["shift"]
    classical, covariance = least_squares(y, x)
    effects = {
        "least squares": (classical, (covariance.diag() * len(y) / (len(y) - 2) / (x @ x)).sqrt()),
        "envelope, maximum likelihood": envelope(y, x),
        "envelope, posterior": (effect.mean(0), effect.std(0)),
    }
    print("\neffect of high protein ± standard deviation: " + ", ".join(effects))
    for k, wavelength in enumerate(WAVELENGTHS):
        print(f"{wavelength} nm  " + "   ".join(f"{m[k]:6.2f} ± {s[k]:5.2f}" for m, s in effects.values()))

    def run(model):
        return SMC(OHMC(model), num_particles=arguments.particles, init="modes", disable_progbar=True)

    table = compare_evidence(model, y, x, over={"dimension": arguments.dimensions}, smc=run)
    print(f"\n{table.round(2)}")
    first, second = figures(y, x, effects, draws["axes"][..., 0].mean(0))
    gallery.write(arguments.output, {"envelope": first, "envelope_axes": second})
    return effects, table


if __name__ == "__main__":
    main()
