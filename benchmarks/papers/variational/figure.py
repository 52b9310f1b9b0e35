"""Draw what `benchmarks.papers.variational.compare` has left in results/variational/, as figures 2 to 5 of the paper.

    python -m benchmarks.papers.variational.figure docs/images

variational_elbo.png has ELBOs by family, optimiser and problem (the paper's figure 5), variational_ranks.png those of
the splines by rank (figure 3), variational_fits.png the data and the fitted curves (figures 2 and 4). ELBOs are drawn
by how much is missing to the best method's, on a logarithmic scale, so that the limits of the axes need no choice.

Prints, of each curve: after how many steps it stays within 5 of its end (single points vary by 1), and how much it
oscillates, the root mean square of the second differences of its points in its second half.
"""

import math
import statistics
from pathlib import Path

import numpy as np
import torch

from benchmarks.papers.variational import splines
from benchmarks.papers.variational.compare import GRID
from benchmarks.papers.variational.methods import FAMILIES, MEAN_FIELD, MIXED, OF_THE_PAPER, STEPS, VAFC
from benchmarks.papers.variational.truth import CACHE
from benchmarks.pictures import pyplot
from benchmarks.stored import read_json
from benchmarks.study import parser_of
from benchmarks.tables import show

plt = pyplot()

TITLES = {"spline": "P-splines", "ionosphere": "ionosphere", "leukemia": "leukemia"}
FLOORS = {"spline": 0.1, "ionosphere": 0.3, "leukemia": 10.0}  # about the error of an ELBO
COLOURS = {"basic": "#E69F00", "momentum": "#56B4E9", "RMSProp": "#009E73", "AdaDelta": "#CC79A7", "Adam": "#0072B2"}
RANK = 4
FLAT = 5.0  # difference of an ELBO from its end
SHADES = ("#BBBBBB", "#FDAE61", "#3288BD", "#1A1A1A")  # of ranks
SIZES = {"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8}


def rows_of(problem):
    path = CACHE / f"{problem}.json"
    return read_json(path) if path.exists() else []


def finite_elbo(row):
    """Mean over fits; minus infinity if one diverged or none was made."""
    values = row.get("ELBO", ())
    return statistics.fmean(values) if values and row.get("curve") else -math.inf


def best_of(rows):
    return max(finite_elbo(row) for row in rows)


def draw(axes, row, best, floor, **style):
    """The part of the ELBO that is missing to the best, against steps."""
    if finite_elbo(row) > -math.inf:
        steps, values = zip(*row["curve"], strict=True)
        axes.plot(steps, [max(best - value, floor) for value in values], **style)


def finish(axes, title, floor):
    axes.set(yscale="log", title=title)
    axes.set_ylim(bottom=0.8 * floor)
    axes.grid(alpha=0.3, lw=0.5)


def legend(fig, axes, columns):
    """One legend of all panels below them."""
    handles = {}
    for each in axes.flat:
        handles.update(zip(*reversed(each.get_legend_handles_labels()), strict=True))
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def save(fig, path):
    fig.savefig(path, dpi=200)
    plt.close(fig)


def flattening(curve):
    """``(steps, oscillation)`` of a curve, see the top of the module."""
    steps, values = map(np.array, zip(*curve, strict=True))
    far = np.flatnonzero(abs(values - values[-1]) > FLAT)
    bends = np.diff(values[len(values) // 2 :], 2)
    return int(steps[far[-1] + 1 if len(far) else 0]), float(np.sqrt(np.mean(bends**2)))


def show_flattening():
    rows = [
        [problem, row["method"], row["rank"], steps, f"{oscillation:.2f}"]
        for problem in TITLES
        for row in rows_of(problem)
        if finite_elbo(row) > -math.inf
        for steps, oscillation in [flattening(row["curve"])]
    ]
    show(["problem", "method", "rank", "steps until flat", "oscillation"], rows)


# ---- ELBO by family and problem ------------------------------------------------------------------------------------


def elbo(path):
    """A row of panels a family, a column a problem; the mean field and VAFC in all of them."""
    found = {problem: rows for problem in TITLES if (rows := rows_of(problem))}
    size = (7, 6.6)
    fig, panels = plt.subplots(
        len(FAMILIES), len(found), figsize=size, squeeze=False, layout="constrained", sharex="col", sharey="col"
    )
    for column, (problem, rows) in zip(panels.T, found.items(), strict=True):
        best, floor = best_of(rows), FLOORS[problem]
        chosen = {row["method"]: row for row in rows if row["rank"] in (0, RANK) and "curve" in row}
        for axes, family in zip(column, FAMILIES, strict=True):
            for name, style in lines(family).items():
                if name in chosen:
                    draw(axes, chosen[name], best, floor, **style)
            finish(axes, f"{family}, {TITLES[problem]}", floor)
        column[-1].set_xlabel("step")
    for axes in panels[:, 0]:
        axes.set_ylabel("ELBO missing to the best")
    legend(fig, panels, 4)
    save(fig, path / "variational_elbo.png")


def lines(family):
    """Methods of a panel and their styles: colours are optimisers."""
    found = {
        MEAN_FIELD: {"color": "0.6", "lw": 3, "label": MEAN_FIELD},
        VAFC: {"color": "black", "ls": ":", "lw": 1.6, "label": VAFC},
    }
    for steps, colour in COLOURS.items():
        found[f"{family} {steps}"] = {"color": colour, "lw": 1.3, "label": steps}
    found[f"{family} basic{MIXED}"] = {"color": COLOURS["basic"], "ls": "--", "lw": 1.3, "label": f"basic{MIXED}"}
    return found


# ---- P-splines by rank, and the fitted curves ------------------------------------------------------------------------


def by_name_and_rank(rows):
    """Rows by method and rank; those of rank 0 by `MEAN_FIELD` and their optimiser."""
    return {(row["method"], row["rank"]): row for row in rows}


def ranks(path):
    """A row of panels a family, a column an optimiser; a curve each rank."""
    rows = rows_of("spline")
    found, best, floor = by_name_and_rank(rows), best_of(rows), FLOORS["spline"]
    shape = len(FAMILIES), len(STEPS)
    fig, panels = plt.subplots(*shape, figsize=(7, 6), layout="constrained", sharex=True, sharey=True)
    every = sorted({rank for _, rank in found if rank != ""})
    for line, family in zip(panels, OF_THE_PAPER, strict=True):
        for axes, steps in zip(line, STEPS, strict=True):
            for rank, colour in zip(every, SHADES, strict=False):
                row = found.get((f"{family} {steps}" if rank else f"{MEAN_FIELD} {steps}", rank))
                if row:
                    draw(axes, row, best, floor, color=colour, lw=1.3, label=f"rank {rank}")
            finish(axes, f"{family}, {steps}", floor)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    for axes in panels[:, 0]:
        axes.set_ylabel("ELBO missing")
    legend(fig, panels, 4)
    save(fig, path / "variational_ranks.png")


def fits(path):
    """The data; and by family how far the fitted curves are from the true one."""
    rows = by_name_and_rank(rows_of("spline"))
    x, y, _ = splines.simulate()
    true = splines.curve(torch.as_tensor(GRID)).numpy()
    fig, panels = plt.subplots(2, 2, figsize=(7, 5.4), layout="constrained", sharex=True)
    data, *others = panels.flat
    data.plot(x[0], y[0], ".", color="0.6", ms=3)
    data.plot(GRID, true, color="black", lw=1.3)
    data.set(title="data and true curve", ylim=(-3, 3))
    for axes, family in zip(others, FAMILIES, strict=True):
        axes.axhline(0, color="black", lw=0.5)
        shown = {("NUTS", ""): {"color": "black", "ls": ":", "lw": 1.6, "label": "NUTS"}}
        shown[f"{MEAN_FIELD} RMSProp", 0] = {"color": "0.6", "lw": 3, "label": MEAN_FIELD}
        for steps in STEPS:
            shown[f"{family} {steps}", RANK] = {"color": COLOURS[steps], "lw": 1.2, "label": steps}
        for key, style in shown.items():
            if key in rows and rows[key].get("fitted"):
                axes.plot(GRID, np.array(rows[key]["fitted"]) - true, **style)
        axes.set(title=f"{family}, rank {RANK}: fit − true curve", ylim=(-0.15, 0.15))
    legend(fig, panels, 3)
    save(fig, path / "variational_fits.png")


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("folder", help="where the pictures are written; it exists")
    folder = parser.parse_args(argv).folder
    if not Path(folder).is_dir():
        parser.error(f"{folder} is no folder: create it first.")
    if not any(map(rows_of, TITLES)):
        raise SystemExit(f"{CACHE} has no results: run benchmarks.papers.variational.compare first.")
    show_flattening()
    with plt.rc_context(SIZES):
        elbo(Path(folder))
        if rows_of("spline"):
            ranks(Path(folder))
            fits(Path(folder))


if __name__ == "__main__":
    main()
