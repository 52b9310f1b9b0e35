"""What the scripts of the gallery share: their options, dtype and seed, and the writing of pictures."""

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


def write(folder, figures, cut=()):
    """Write figures ``{name: figure}`` into a folder, those of the names ``cut`` without their margins, and close all.

    ``cut`` is for figures with a legend beside the axes.
    """
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight" if name in cut else None)
    plt.close("all")
    print(f"Wrote pictures into {folder}.")
