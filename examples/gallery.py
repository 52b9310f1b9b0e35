"""What the scripts of the gallery share: options, dtype and seed, a picture of evidences, the writing of pictures."""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import torch


def options(description, draws=2_000, warmup="half as many"):
    """Return a parser with the options of all scripts, the folder of the pictures and the number of draws."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--draws", type=int, default=draws, help=f"of each chain, after {warmup} of warm-up")
    return parser


def begin(parser, argv, dtype=torch.float64):
    """Return the arguments, with the default dtype, one thread, the seed 0 and the folder of the pictures made."""
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)  # the matrices are too small to share
    pyro.set_rng_seed(0)
    arguments.output.mkdir(parents=True, exist_ok=True)
    return arguments


def figure_of_evidence(table):
    """Return a figure of the table of `compare_evidence` over the values of a number, such as the rank.

    The scale is logarithmic below −3 nats, so that the plausible models are apart.
    """
    fig, ax = plt.subplots(figsize=(5, 3.2), layout="tight")
    low, high = ((table.difference + sign * table.dse) for sign in (-2, 2))
    ax.plot(table.index, table.difference, color="0.75", lw=1, zorder=1)
    for number, row in table.iterrows():
        colour = "#0072B2" if row.difference < 0 else "#D55E00"  # the best
        ax.errorbar(number, row.difference, 2 * row.dse, fmt="o", ms=5, color=colour, capsize=3)
        if row.probability >= 0.01:
            top, style = (number, high[number]), {"ha": "center", "color": colour}
            ax.annotate(f"{row.probability:.2f}", top, (0, 5), textcoords="offset points", **style)
    ax.set_yscale("symlog", linthresh=3, linscale=1.5)
    ticks = [tick for tick in (0, 1, 2, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if tick <= -low.min()]
    ax.set_yticks([-tick for tick in ticks], [f"−{tick}" if tick else "0" for tick in ticks])
    for height, style in ((0, "-"), (-3, ":")):
        ax.axhline(height, color="0.85", lw=1, ls=style, zorder=0)
    note = "numbers: probability of the model\nscale: logarithmic below −3"
    ax.text(0.99, 0.03, note, transform=ax.transAxes, ha="right", color="0.4", fontsize="small")
    ax.set(xlabel=table.index.name, ylabel="log evidence below the best,\n± 2 standard errors (nats)")
    ax.set(xmargin=0.08, xticks=table.index, ylim=(1.6 * low.min(), high.max() + 1))
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def write(folder, figures, cut=()):
    """Write figures ``{name: figure}`` into a folder, those of the names ``cut`` without their margins, and close all.

    ``cut`` is for figures with a legend beside the axes.
    """
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight" if name in cut else None)
    plt.close("all")
    print(f"Wrote pictures into {folder}.")
