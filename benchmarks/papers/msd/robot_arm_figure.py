"""Draw autocorrelations against lag from the draws of `benchmarks.papers.msd.robot_arm`, kept in results/robot_arm.

python -m benchmarks.papers.msd.robot_arm_figure docs/images/robot_arm.png
"""

import argparse

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

from benchmarks.papers.msd.robot_arm import GROUPS, LAG, autocorrelation
from benchmarks.papers.msd.robot_arm_model import original
from benchmarks.papers.msd.robot_arm_samplers import SAMPLERS, sample_once

COLOURS = {"MSD": "#D55E00", "HMC30": "#56B4E9", "HMC100": "#0072B2"}
LAGS = 100


def style(name):
    """Colour by sampler; dashes for the Jeffreys target and for persistent momenta."""
    kind, _, variant = name.partition(", ")
    return {"color": COLOURS[kind], "ls": "--" if variant else "-"}


def panel(axes, site, found):
    for name, runs in found.items():
        values = autocorrelation(runs.draws, site)[:, : LAGS + 1]
        mean, deviation = values.mean(0), values.std(0, ddof=1)
        axes.plot(mean, label=name, **style(name))
        axes.fill_between(
            range(len(mean)), mean - deviation, mean + deviation, color=style(name)["color"], alpha=0.12, lw=0
        )
    axes.axvline(LAG, color="0.7", lw=0.8, zorder=0)
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.set(xlim=(0, LAGS), xlabel="lag in draws")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    arm = original()
    found = {name: sample_once(name, arm) for name in SAMPLERS}
    fig, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axes, (title, site) in zip(panels, GROUPS.items(), strict=True):
        panel(axes, site, found)
        axes.set_title(f"{title} weights")
    panels[0].set_ylabel("autocorrelation")
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, ncols=3, loc="lower center", frameon=False)
    fig.tight_layout(rect=(0, 0.13, 1, 1))
    fig.savefig(arguments.path, dpi=110)


if __name__ == "__main__":
    main()
