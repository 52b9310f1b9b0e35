"""Regression on collinear attributes, by a guide whose low-rank direction shows which combination is not identified.

In the diabetes data (442 patients, Efron, Hastie, Johnstone & Tibshirani 2004) total cholesterol s1, low-density
lipoproteins s2, high-density lipoproteins s3 and log triglycerides s5 are nearly collinear. The data determine some
combinations of their coefficients well and one hardly at all: the posterior is long in that direction. A mean-field
guide cannot represent it, and underestimates the standard deviation of each coefficient many times. One orthonormal
direction corrects this. It is determined by the posterior and can be interpreted: cholesterol against its components.

Training shows a progress bar. Given the noise the posterior is Gaussian, so the picture also has exact intervals.

    python examples/collinear_regression.py --output results
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from sklearn.datasets import load_diabetes
from tqdm import trange

from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from pyro_manifold.optim import TorchRiemannianAdam

PRIOR_SCALE = 2.0


def model(x, y):
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(x.shape[-1]), PRIOR_SCALE).to_event(1))
    with pyro.plate("patients", len(x)):
        pyro.sample("y", dist.Normal((slopes * x).sum(-1), noise), obs=y)


def load():
    """Return standardised attributes and progression of the disease, and the names of attributes."""
    diabetes = load_diabetes()
    x, y = torch.as_tensor(diabetes.data), torch.as_tensor(diabetes.target)
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), diabetes.feature_names


def exact_slopes(x, y, noise):
    """Return mean and standard deviation of the slopes given the noise."""
    precision = x.mT @ x / noise**2 + torch.eye(x.shape[-1]) / PRIOR_SCALE**2
    covariance = torch.linalg.inv(precision)
    return (covariance @ x.mT @ y / noise**2).numpy(), covariance.diagonal().sqrt().numpy()


def fit(rank, data, steps, learning_rate=0.1):
    """Train a guide of a rank, with a learning rate that decays to zero by half a cosine; return it and its losses."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoStiefelLowRankMultivariateNormal(model, rank=rank)
    options = {"optimizer": TorchRiemannianAdam, "optim_args": {"lr": learning_rate}, "T_max": steps}
    schedule = pyro.optim.CosineAnnealingLR(options)
    loss = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
    svi, losses = SVI(model, guide, schedule, loss), []
    with trange(steps, desc=f"rank {rank}") as progress:
        for step in progress:
            losses.append(svi.step(*data))
            schedule.step()
            if step % 500 == 499:
                progress.set_postfix(ELBO=f"{-sum(losses[-500:]) / 500:.1f}")
    return guide, losses


def figure(losses, intervals, names, found):
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), width_ratios=[1, 1.25, 1.25])
    colours = dict(zip(intervals, ("#333333", "#D55E00", "#0072B2"), strict=True))
    window = 100
    for name, values in losses.items():
        smooth = -torch.tensor(values).unfold(0, window, window).mean(-1).numpy()
        left.plot(range(window, window * len(smooth) + 1, window), smooth, label=name, color=colours[name])
        left.set_ylim(smooth[-1] - 30, smooth[-1] + 5)
    left.locator_params(axis="x", nbins=4)
    left.set(xlabel="step", ylabel="ELBO", title="Training")
    left.legend(frameon=False, loc="lower right")

    rows = np.arange(len(names))
    for shift, (name, (mean, deviation)) in zip((0.25, 0, -0.25), intervals.items(), strict=True):
        middle.errorbar(mean, rows + shift, xerr=1.88 * deviation, fmt="o", ms=3, color=colours[name], label=name)
    middle.axvline(0, color="0.8", lw=1, zorder=0)
    middle.set_yticks(rows, names)
    middle.set(xlabel="slope", title="94 % intervals")
    middle.legend(frameon=False)

    direction, share = found.directions["slopes"][0].numpy(), float(found.explained[0])
    right.barh(rows, direction, color=colours["rank 1"])
    right.axvline(0, color="0.8", lw=1)
    right.set_yticks(rows, names)
    right.set(xlabel="entry", title=f"The direction: {100 * share:.0f} % of the guide's variance")
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--steps", type=int, default=6_000)
    arguments = parser.parse_args(argv)

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # the matrices are too small to share
    x, y, names = load()
    fits = {"mean field": fit(0, (x, y), arguments.steps), "rank 1": fit(1, (x, y), arguments.steps)}
    guide = fits["rank 1"][0]
    found = guide.identified_covariance()
    intervals = {"exact": exact_slopes(x, y, guide.median()["noise"])}
    for name, (each, _) in fits.items():
        posterior = each.get_posterior()  # unconstrained: the logarithm of the noise, then the slopes
        intervals[name] = posterior.mean.detach()[1:].numpy(), posterior.stddev.detach()[1:].numpy()
    for attribute, *deviations in zip(names, *(deviation for _, deviation in intervals.values()), strict=True):
        columns = "".join(f"{name:>12s} {float(s):.3f}" for name, s in zip(intervals, deviations, strict=True))
        print(f"s.d. of the slope of {attribute:4s}{columns}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "collinear_regression.png"
    losses = {name: values for name, (_, values) in fits.items()}
    figure(losses, intervals, names, found).savefig(path, dpi=110)
    print(f"Wrote {path}.")
    return intervals, found


if __name__ == "__main__":
    main()
