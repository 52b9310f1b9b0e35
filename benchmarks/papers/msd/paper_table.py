"""The table and Figure 1 of Zlochin & Baram: HMC30, HMC100 and MSD on MacKay's robot arm.

    python -m benchmarks.papers.msd.paper_table [--runs 10] [--starts small] [--samplers "MSD, Jeffreys"]
        [--figure FILE] [--seed 0] [--small]

As in the paper: the 2-8-2 network with β = 400 and α = 1, MacKay's data, ten runs of 3,000 iterations whose first 1,000
are dropped, errors of the mean prediction of every twentieth of the others on the 400 test cases in units of the noise
variance, persistent momenta with cos θ = 0.95 for all samplers, one step an iteration for MSD, whose target is
"MSD, Jeffreys" (the posterior times √|G|). ``--runs 30`` makes more of them, for what ten do not decide. The paper
normalises errors by "the variance on the test cases", read here as the known variance of the noise: by the noise that
the test cases have, 0.942 of it, all errors would be 1.06 times as large.

The paper leaves open three things, and each row is one reading of them:

- initial weights: "descended" from small weights by a trust-region method, "small" (0.1 times draws of the prior),
  "zero", "prior" (draws of it). All samplers of one kind have the same;
- step sizes: HMC by rejections below 5 %, MSD by "around 0.05" as the mean absolute error of a step's energy, over
  "descended" runs (`robot_arm_steps`). From small weights MSD has 0.12 too, by that error there, and HMC the next
  smaller ε of its ladder;
- the weights of I and G in the metric, which may differ from α and β: 1 and 1, or 10 and 1, or 1 and 1/2. With 10 and
  1 the step sizes are the two between which the energy error passes 0.05.

The lags of Figure 1 go to 50; its samplers begin at descended weights here, from which HMC has converged.
Runs are kept in results/robot_arm; a second call reads them.
"""

import numpy as np

from benchmarks.arguments import count, new_file
from benchmarks.papers.msd.robot_arm import (
    GROUPS,
    LAG,
    autocorrelation,
    autocorrelations,
    errors,
    normalised_error,
    spread,
)
from benchmarks.papers.msd.robot_arm_model import original, position, simulate
from benchmarks.papers.msd.robot_arm_samplers import (
    PAPER,
    SAMPLERS,
    STARTS,
    STEP_SIZES,
    WEIGHTED,
    sample,
    sample_once,
)
from benchmarks.study import option, read, switch
from benchmarks.tables import show

OWN = "MSD, Jeffreys"
ALL = ("HMC30, persistent", "HMC100, persistent", OWN)
SETTINGS = [
    *((name, start, None) for start in STARTS for name in ALL),
    *((name, "small", 0.0002) for name in ALL[:2]), (OWN, "small", 0.12),
    *(("MSD, Jeffreys, 10 I", "small", step) for step in (0.2, 0.25)),
    ("MSD, Jeffreys, half G", "small", STEP_SIZES[OWN]),
]  # fmt: skip
"""Sampler, initial weights, and ε if it is not that of `STEP_SIZES`."""
COLUMNS = [
    "initial weights", "sampler", "ε", "test error", "paper", "least", "most", *(f"lag {LAG}, {g}" for g in GROUPS),
    "rejected", "energy error",
]  # fmt: skip
COLOURS = {"HMC30, persistent": "#56B4E9", "HMC100, persistent": "#0072B2", OWN: "#D55E00"}
LAGS = 50


def row(name, start, step_size, runs, arm):
    test = errors(runs.draws, *arm[2:])
    return [
        start, name, f"{step_size:g}", spread(test), PAPER[name.split(",")[0]], f"{test.min():.3f}",
        f"{test.max():.3f}", *(spread(autocorrelation(runs.draws, site)[:, LAG]) for site in GROUPS.values()),
        f"{100 * runs.rejections.mean():.1f} %", f"{np.nanmean(runs.energy_error):.3f}",
    ]  # fmt: skip


def figure(found, path):
    """Figure 1."""
    chosen = {name: runs for name, runs in found.items() if name in COLOURS}
    styles = {name: {"color": COLOURS[name], "label": name.replace(", persistent", "")} for name in chosen}
    fig, panels = autocorrelations(chosen, LAGS, styles.get, (9, 3.6))
    panels[1].legend(frameon=False)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main(argv=None):
    arguments = read(
        __doc__, argv, figure=option(None, "where Figure 1 is written", type=new_file),
        runs=option(10, "of each row", type=count), starts=option(list(STARTS), "initial weights", choices=STARTS),
        samplers=option(sorted({each[0] for each in SETTINGS}), choices=SAMPLERS | WEIGHTED),
        seed=option(0, "of the initial values and of the runs"),
        small=switch("simulated data, one sampler, two short runs"),
    )  # fmt: skip
    arm = simulate(0) if arguments.small else original()
    settings = [(OWN, "zero", None)] if arguments.small else SETTINGS
    found = {}

    def rows():
        for name, start, step in settings:
            if start not in arguments.starts or name not in arguments.samplers:
                continue
            step_size = step or STEP_SIZES[name]
            if arguments.small:
                runs = sample(name, arm, 2, 160, 100, step_size, start, 0)
            else:
                options = {"runs": arguments.runs, "start": start, "seed": arguments.seed}
                runs = sample_once(name, arm, step_size=step_size, **options)
            found.setdefault(name, runs)  # of descended weights, where there are such runs
            yield row(name, start, step_size, runs, arm)
        yield ["", "true function", "", f"{float(normalised_error(position(arm.x_test), arm.y_test)):.3f}"]

    show(COLUMNS, rows())
    if arguments.figure:
        figure(found, arguments.figure)


if __name__ == "__main__":
    main()
