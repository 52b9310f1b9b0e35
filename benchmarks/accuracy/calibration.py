"""Simulation-based calibration of every kernel: are ranks of true values among draws uniform?

    python -m benchmarks.accuracy.calibration --picture docs/images/calibration.png
    python -m benchmarks.accuracy.calibration --results results/calibration.npz --picture docs/images/calibration.png
    python -m benchmarks.accuracy.calibration --only OHMC "a dropped Jacobian" --data-sets 2000

The model and the method: `problems.calibration`. All kernels and quantities together are held to one level: a package
that is right is accused with a probability of at most 1 %, as each comparison has its share of that (Bonferroni).
Variants that are wrong on purpose are held to the same thresholds, and each must be found out.

Kernels of stochastic gradients see all data at each step, and take steps so short that their bias is below what these
ranks can resolve; with steps ten times as long it is not, which is one of the variants.

``--results`` keeps the ranks in a file: rows that the file has are drawn from it, not computed again.
"""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro
import torch
from torch.distributions import biject_to
from torch.distributions.transforms import ExpTransform

from benchmarks.pictures import pyplot
from benchmarks.study import option, read
from benchmarks.tables import table
from problems.calibration import QUANTITIES, draw_by_nuts, draw_vectorised, ranks, simulate
from pyro_manifold.contrib.calibration import BINS, Uniformity
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MSD, OHMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT, GeodesicSlice

LEVEL = 0.01
DATA_SETS, DRAWS = 1000, 99
NUTS_DATA_SETS, NUTS_DRAWS = 100, 19


class Way(NamedTuple):
    """One way to draw: from simulated data sets to draws, given their number.

    Attributes:
        draw: ``draw(simulated, draws=...)``.
        one_by_one: whether it takes one data set after the other.
        uneven: how often the simulated U[0,0] is positive.
    """

    draw: Callable[..., dict[str, torch.Tensor]]
    one_by_one: bool = False
    uneven: float = 0.5


class Outcome(NamedTuple):
    """Ranks ``(data sets, quantities)`` among so many draws, and the seconds of one core that they took."""

    ranks: np.ndarray
    draws: int
    seconds: float

    @property
    def p_values(self) -> list[float]:
        """One for each quantity."""
        uniformity = Uniformity(len(self.ranks))
        return [uniformity.p_value(uniformity.statistic(column, self.draws)) for column in self.ranks.T]


class WithoutJacobian(ExpTransform):
    """A positive site's way to unconstrained space, whose change of volume is forgotten."""

    def log_abs_det_jacobian(self, x, y):
        return torch.zeros_like(x)


def in_chart(chart):
    return {"U": biject_to(StiefelUniform(3, 2, chart=chart).support).inv}


def vectorised(make, *, thinning, warmup_steps, chart="polar", **options):
    return Way(partial(draw_vectorised, make, thinning=thinning, warmup_steps=warmup_steps, chart=chart), **options)


def stochastic(kernel, *, thinning, **settings):
    return vectorised(partial(kernel, **settings), thinning=thinning, warmup_steps=50)


def nuts(chart):
    return Way(partial(draw_by_nuts, thinning=2, warmup_steps=60, chart=chart), one_by_one=True)


def ohmc(model, **options):
    # One step size for all posteriors: the narrow ones need shorter steps than the average.
    return OHMC(model, target_accept_prob=0.9, **options)


def msd(model):
    charted = in_chart("householder")
    options = {"step_size": 0.5, "num_steps": 3, "persistence": 0.0, "adapt_step_size": False}
    return MSD(model, metropolis=True, transforms=charted, **options)


# Thinned until draws have an autocorrelation of about 0.1 at most (0.2 for PSGLD): ranks among 19 need it.
KERNELS = {
    "OHMC": vectorised(ohmc, thinning=4, warmup_steps=200),
    "GHMC": vectorised(lambda model: GHMC(model, target_accept_prob=0.9), thinning=3, warmup_steps=200),
    "NUTS, polar chart": nuts("polar"),
    "NUTS, Householder chart": nuts("householder"),
    "MSD, adjusted": vectorised(msd, thinning=7, warmup_steps=60, chart="householder"),
    "SGLD": stochastic(SGLD, thinning=6, step_size=0.01, num_steps=40),
    "PSGLD": stochastic(PSGLD, thinning=10, step_size=0.015, num_steps=40, decay=0.9995),
    "SGHMC": stochastic(SGHMC, thinning=2, step_size=0.1, num_steps=20, transforms=in_chart("polar")),
    "OSGHMC": stochastic(OSGHMC, thinning=2, step_size=0.1, num_steps=20),
    "SGNHT": stochastic(SGNHT, thinning=2, step_size=0.1, num_steps=20),
    "GeodesicSlice": vectorised(GeodesicSlice, thinning=10, warmup_steps=60),
}
BROKEN = {
    "uneven prior masses": vectorised(ohmc, thinning=3, warmup_steps=200, uneven=0.65),
    "a dropped Jacobian": vectorised(
        lambda model: ohmc(model, transforms={"scale": WithoutJacobian().inv}), thinning=3, warmup_steps=200
    ),
    "a short warm-up": vectorised(ohmc, thinning=1, warmup_steps=1),
    "SGLD, 10 times the step": stochastic(SGLD, thinning=3, step_size=0.1, num_steps=10),
}
COLOURS = {"U": "#0072B2", "scale": "#D55E00", "shift": "#009E73", "log likelihood": "0.2"}
COMPARISONS = len(KERNELS) * len(QUANTITIES)


def calibrate(name: str, data_sets: int | None = None, draws: int | None = None) -> Outcome:
    """Ranks of one kernel or broken variant; the seed follows from its name."""
    way = {**KERNELS, **BROKEN}[name]
    data_sets = data_sets or (NUTS_DATA_SETS if way.one_by_one else DATA_SETS)
    # As few draws as the warm-up is short, or most of them would be good.
    draws = draws or (NUTS_DRAWS if way.one_by_one or name == "a short warm-up" else DRAWS)
    pyro.set_rng_seed(sum(map(ord, name)))
    simulated = simulate(data_sets, way.uneven)
    begin = time.process_time()
    found = way.draw(simulated, draws=draws)
    return Outcome(ranks(simulated, found).numpy(), draws, time.process_time() - begin)


def rows(outcomes: dict[str, Outcome]):
    for name, outcome in outcomes.items():
        found = outcome.p_values
        worst, sizes = int(np.argmin(found)), (str(len(outcome.ranks)), str(outcome.draws))
        verdict = "not uniform" if found[worst] <= LEVEL / COMPARISONS else "uniform"
        yield [name, *sizes, f"{found[worst]:.2g}", QUANTITIES[worst], verdict, f"{outcome.seconds:.0f}"]


def save(outcomes: dict[str, Outcome], path: Path) -> None:
    """Write ranks, numbers of draws and seconds to one file, three arrays for each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{name}/{field}": value for name, each in outcomes.items() for field, value in each._asdict().items()}
    np.savez(path, **arrays)


def saved(path: Path | None) -> dict[str, Outcome]:
    """Return the rows of a file that `save` has written; none if there is no such file."""
    if path is None or not path.exists():
        return {}
    with np.load(path) as stored:
        names = dict.fromkeys(key.rsplit("/", 1)[0] for key in stored)
        return {
            name: Outcome(stored[f"{name}/ranks"], int(stored[f"{name}/draws"]), float(stored[f"{name}/seconds"]))
            for name in names
        }


def picture(outcomes: dict[str, Outcome], path: Path) -> None:
    """Empirical distribution functions of ranks less the diagonal, with the band that all of them stay in."""
    plt = pyplot()

    columns = 3
    lines = -(-len(outcomes) // columns)
    # 7 inches wide: text of 8 points is legible where a page shows the picture 700 pixels wide.
    fig, axes = plt.subplots(lines, columns, figsize=(7, 0.7 + 1.45 * lines), sharex=True, squeeze=False)
    for ax, (name, outcome) in zip(axes.flat, outcomes.items(), strict=False):
        panel(ax, outcome)
        ax.set_title(name, fontsize=9, color="#B00000" if name in BROKEN else "black")
        ax.tick_params(labelsize=8)
        ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        ax.locator_params(axis="y", nbins=4)
    for ax in axes.flat[len(outcomes) :]:
        ax.set_axis_off()
    handles = [plt.Line2D([], [], color=colour, lw=2, label=label) for label, colour in COLOURS.items()]
    fig.supxlabel("rank / draws", fontsize=9, y=0.5 / fig.get_figheight())
    fig.supylabel("distribution function of ranks − diagonal", fontsize=9)
    fig.legend(handles=handles, loc="lower center", ncols=4, frameon=False, fontsize=9, borderaxespad=0)
    fig.tight_layout(rect=(0, 0.35 / fig.get_figheight(), 1, 1), h_pad=0.6, w_pad=0.4)
    fig.savefig(path, dpi=200)
    plt.close(fig)


def panel(ax, outcome: Outcome) -> None:
    """Draw a line for each quantity of one row of the table, and the band."""
    edges = np.arange(1, BINS) / BINS
    count = len(outcome.ranks)
    uniformity = Uniformity(count)
    low, high = uniformity.band(uniformity.threshold(LEVEL / COMPARISONS))
    ax.fill_between(edges, low / count - edges, high / count - edges, color="0.88", linewidth=0)
    bins = outcome.ranks * BINS // (outcome.draws + 1)
    for quantity, column in zip(QUANTITIES, bins.T, strict=True):
        share = np.bincount(column, minlength=BINS).cumsum()[:-1] / count
        colour = COLOURS["U" if quantity.startswith("U") else quantity]
        ax.plot(edges, share - edges, color=colour, linewidth=0.9)


def main(arguments: list[str] | None = None) -> int:
    options = read(
        __doc__, arguments,
        only=option(None, "some of the rows", nargs="+", choices=[*KERNELS, *BROKEN], metavar="NAME"),
        data_sets=option(None, "of vectorised kernels, and of NUTS; 1000 and 100 by default", type=int),
        picture=option(None, "where to draw the ranks", type=Path),
        results=option(None, "file that keeps the ranks; rows that it has are read from it", type=Path),
    )  # fmt: skip
    outcomes, known = {}, saved(options.results)
    for name in options.only or [*KERNELS, *BROKEN]:
        with warnings.catch_warnings():
            if name in BROKEN:
                warnings.simplefilter("ignore")  # such as of chains that hardly moved, which is what is asked for
            outcomes[name] = known[name] if name in known else calibrate(name, options.data_sets)
        if options.results:
            save({**known, **outcomes}, options.results)
        print(*next(rows({name: outcomes[name]})), sep=" | ", flush=True)
    titles = ["", "data sets", "draws", "smallest p", "of", "ranks", "CPU s"]
    print(table(titles, rows(outcomes)))
    print(f"Not uniform: p ≤ {LEVEL / COMPARISONS:.1e}, {LEVEL:.0%} over all {COMPARISONS} comparisons of kernels.")
    if options.picture:
        picture(outcomes, options.picture)
    wrong = [row[0] for row in rows(outcomes) if (row[5] == "uniform") == (row[0] in BROKEN)]
    if wrong:
        print("Not as expected:", ", ".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
