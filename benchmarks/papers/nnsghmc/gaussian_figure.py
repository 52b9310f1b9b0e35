"""Figure 1 of the paper: KL of the draws from a Gaussian by step, and paths of one chain on two coordinates."""

from __future__ import annotations

import matplotlib
import numpy as np
import torch

COVARIANCE = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.double)
PATH = 800  # steps of a path
FIRST, POINTS = 20, 40
COLOURS = {"NNSGHMC": "C0", "SGHMC": "C1"}


def times(steps):
    """Numbers of steps of which KL is drawn, equally far apart on a logarithmic scale, up to all."""
    return sorted({int(n) for n in np.geomspace(min(FIRST, steps), steps, POINTS).round()})


def draw(file, curves, paths):
    """Three panels.

    Args:
        file: of the picture.
        curves: ``{sampler: curves of the covariances}``, each of pairs of steps and KL.
        paths: ``{sampler: (steps, 2)}``.
    """
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, *others) = plt.subplots(1, 1 + len(paths), figsize=(12, 4), layout="constrained")
    for name, found in curves.items():
        whole = [np.array(curve) for curve in found if len(curve)]
        if whole:
            left.plot(whole[0][:, 0], np.mean([curve[:, 1] for curve in whole], 0), COLOURS[name], label=name)
    left.set(xscale="log", yscale="log", xlabel="step", ylabel="KL of all draws so far from the target")
    left.legend(frameon=False)
    for axes, (name, path) in zip(others, paths.items(), strict=True):
        _contours(axes)
        axes.plot(*path.T, COLOURS[name], lw=0.7)
        axes.plot(*path[0], "o", color="black", ms=4)
        axes.set(title=f"{name}, {len(path)} steps", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5), aspect="equal")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _contours(axes):
    """Where the density is e^(-k²/2) of its largest, k = 1, 2, 3."""
    grid = np.linspace(-3.5, 3.5, 200)
    x = np.stack(np.meshgrid(grid, grid), -1)
    distance = np.sqrt(np.einsum("...i,ij,...j", x, np.linalg.inv(COVARIANCE.numpy()), x))
    axes.contour(grid, grid, distance, levels=(1, 2, 3), colors="0.5", linewidths=0.8)
