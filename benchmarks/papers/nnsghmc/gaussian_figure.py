"""Figure 1 of the paper: KL of the draws from a Gaussian by step, and paths of one chain on two coordinates.

The authors' curves are files of their code (github.com/WenboGong/MetaSGMCMC, "Toy Example/TestResult"): KL after each
100 steps, on each of their covariances.
"""

from pathlib import Path

import numpy as np
import torch

from benchmarks.pictures import pyplot
from benchmarks.tables import show

COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.double)
INITIAL = torch.tensor([-2.5, -2.5], dtype=torch.double)
PATH = 400  # steps of a path
PARTS = 120  # of the steps, so that those of the paper's 12,000 are multiples of the authors' 100
THEIRS = {"NNSGHMC": "Convergence_IN_chain_nnsghmc_rand_cov_*", "SGHMC": "Convergence_sghmc_rand_cov_*"}
BETWEEN = 100
COLOURS = {"NNSGHMC": "C0", "SGHMC": "C1"}


def times(steps):
    """About 40 numbers of steps of which KL is drawn, about equally far apart on a logarithmic scale, up to all."""
    parts = np.unique(np.geomspace(1, PARTS, 62).round().astype(int)).tolist()
    first = min(5, steps)  # the covariance of fewer draws may be singular
    return sorted({max(first, -(-steps * part // PARTS)) for part in parts})


def curves_of_the_authors(folder):
    """``{sampler: (covariances, values)}``, without samplers of which the folder has no files."""
    files = {name: sorted(Path(folder).glob(pattern)) for name, pattern in THEIRS.items()}
    return {name: torch.tensor(np.array([np.loadtxt(file) for file in each])) for name, each in files.items() if each}


def print_curves(steps, curves, theirs):
    """Print means over covariances, and on how many of them the first sampler has the lower KL."""
    ours, other = curves.values()
    rows = []
    for n, a, b in zip(times(steps), ours.T, other.T, strict=True):
        index, rest = divmod(n, BETWEEN)
        known = [] if rest else [values.mean(0)[index - 1] for values in theirs.values() if index <= values.shape[1]]
        means = [f"{mean:.3g}" for mean in (a.mean(), b.mean(), *known)]
        rows.append([n, *means[:2], f"{int((a < b).sum())} of {len(a)}", *means[2:]])
    first, second = curves
    headings = ["steps", f"KL, {first}", f"KL, {second}", f"lower by {first} on"]
    show([*headings, *(f"{name}, authors" for name in theirs)], rows)


def print_lengths(paths):
    for name, path in paths.items():
        print(f"Path of {name}: {len(path) - 1} steps, length {path.diff(dim=0).norm(dim=1).sum():.1f}")


def draw(file, steps, curves, theirs, paths):
    """Draw three panels.

    Args:
        file: of the picture.
        steps: of the runs.
        curves: ``{sampler: (covariances, times(steps))}``, KL.
        theirs: `curves_of_the_authors`, or none.
        paths: ``{sampler: (steps, 2)}``.
    """
    plt = pyplot()

    figure, (left, *others) = plt.subplots(1, 1 + len(paths), figsize=(13, 4.2), layout="constrained")
    for name, values in curves.items():
        left.plot(times(steps), values.mean(0), COLOURS[name], label=name)
        left.fill_between(times(steps), values.amin(0), values.amax(0), color=COLOURS[name], alpha=0.2, lw=0)
    for name, values in theirs.items():
        numbers = BETWEEN * np.arange(1, 1 + values.shape[1])
        left.plot(numbers, values.mean(0), COLOURS[name], linestyle=":", label=f"{name}, authors")
    left.set(xscale="log", yscale="log", xlabel="steps", title="KL of all draws so far from the target")
    left.legend(frameon=False)
    for axes, (name, path) in zip(others, paths.items(), strict=True):
        _contours(axes)
        axes.plot(*path.T, COLOURS[name], lw=1.0)
        axes.plot(*path[0], "k*", ms=10, label="first")
        axes.plot(*path[-1], "k^", label="last")
        axes.set(title=f"{name}, {len(path) - 1} steps", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5), aspect="equal")
        axes.legend(frameon=False, loc="upper left")
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _contours(axes):
    """Where the density is e^(-k²/2) of its largest, k = 1, 2, 3."""
    grid = np.linspace(-3.5, 3.5, 200)
    x = np.stack(np.meshgrid(grid, grid), -1)
    distance = np.sqrt(np.einsum("...i,ij,...j", x, np.linalg.inv(COVARIANCE.numpy()), x))
    axes.contour(grid, grid, distance, levels=(1, 2, 3), colors="0.5", linewidths=0.8)
