"""Draw ELBO against time from what `benchmarks.papers.variational.compare` has left in results/variational/.

python -m benchmarks.papers.variational.figure docs/images/variational_elbo.png
"""

from __future__ import annotations

import json
import math
import sys

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.papers.variational.methods import MEAN_FIELD, VAFC
from benchmarks.papers.variational.truth import CACHE

TITLES = {"spline": "P-splines", "ionosphere": "ionosphere, first fold", "leukemia": "leukemia, one seed"}
COLOURS = {"basic": "#E69F00", "momentum": "#56B4E9", "RMSProp": "#009E73", "AdaDelta": "#CC79A7", "Adam": "#0072B2"}
DASHES = {"Stiefel W": "-", "Stiefel": "-.", "Grassmann": "--"}


def style(name):
    """Colour by optimiser, dashes by family, black for what is compared with."""
    if name in (MEAN_FIELD, VAFC):
        return {"color": "black", "ls": ":" if name == MEAN_FIELD else "-", "lw": 2}
    family, optimiser = name.rsplit(" ", 1)
    return {"color": COLOURS[optimiser], "ls": DASHES[family], "lw": 1.2}


def shown(row, rank):
    """Curves of the plain methods, at one rank."""
    return row.get("curve") and row["rank"] in (0, rank) and "," not in row["method"] and "s=1" not in row["method"]


def panel(axes, problem, rank):
    rows = [row for row in json.loads((CACHE / f"{problem}.json").read_text()) if shown(row, rank)]
    for row in rows:
        seconds, values = zip(*row["curve"], strict=True)
        axes.plot(seconds, values, label=row["method"], **style(row["method"]))
    ends = sorted(row["curve"][-1][1] for row in rows)
    best, middle = ends[-1], ends[len(ends) // 2]
    axes.set_ylim(middle - 6 * max(best - middle, 2.0), best + max(best - middle, 2.0))
    axes.set(title=f"{TITLES[problem]}, rank {rank}", xlabel="seconds")


def main(path, rank=4):
    """Two panels a row, 7 inches wide, so that text is legible where a page shows the picture 700 pixels wide."""
    problems = [problem for problem in TITLES if (CACHE / f"{problem}.json").exists()]
    rows = math.ceil(len(problems) / 2)
    fig, panels = plt.subplots(rows, 2, figsize=(7, 3 * rows + 1.6), squeeze=False, layout="constrained")
    for axes, problem in zip(panels.flat, problems, strict=False):
        panel(axes, problem, rank)
    for axes in panels.flat[len(problems) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("ELBO")
    handles = {}  # every method of any panel
    for axes in panels.flat:
        handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    fig.savefig(path, dpi=200)
    plt.close(fig)


if __name__ == "__main__":
    main(sys.argv[1])
