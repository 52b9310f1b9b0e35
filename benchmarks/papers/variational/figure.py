"""Draw ELBO against time from what `benchmarks.papers.variational.compare` has left in results/variational/.

python -m benchmarks.papers.variational.figure docs/images/variational_elbo.png
"""

from __future__ import annotations

import json
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
    problems = [problem for problem in TITLES if (CACHE / f"{problem}.json").exists()]
    fig, panels = plt.subplots(1, len(problems), figsize=(5 * len(problems), 4.6), squeeze=False)
    for axes, problem in zip(panels[0], problems, strict=True):
        panel(axes, problem, rank)
    panels[0, 0].set_ylabel("ELBO")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, ncols=4, loc="lower center", frameon=False)
    fig.tight_layout(rect=(0, 0.16, 1, 1))
    fig.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
