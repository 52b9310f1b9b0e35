"""Draw autocorrelations against lag from the draws of `benchmarks.papers.msd.robot_arm`, kept in results/robot_arm.

python -m benchmarks.papers.msd.robot_arm_figure docs/images/robot_arm.png
"""

from benchmarks.papers.msd.robot_arm import LAG, autocorrelations
from benchmarks.papers.msd.robot_arm_model import original
from benchmarks.papers.msd.robot_arm_samplers import SAMPLERS, sample_once
from benchmarks.study import parser_of, set_up

COLOURS = {"MSD": "#D55E00", "HMC30": "#56B4E9", "HMC100": "#0072B2"}
LAGS = 100


def style(name):
    """Colour by sampler; dashes for the Jeffreys target and for persistent momenta."""
    kind, _, variant = name.partition(", ")
    return {"color": COLOURS[kind], "ls": "--" if variant else "-"}


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("path")
    arguments = parser.parse_args(argv)
    set_up()
    arm = original()
    found = {name: sample_once(name, arm) for name in SAMPLERS}
    fig, panels = autocorrelations(found, LAGS, style, (9, 3.8))
    for axes in panels:
        axes.axvline(LAG, color="0.7", lw=0.8, zorder=0)
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, ncols=3, loc="lower center", frameon=False)
    fig.tight_layout(rect=(0, 0.13, 1, 1))
    fig.savefig(arguments.path, dpi=110)


if __name__ == "__main__":
    main()
