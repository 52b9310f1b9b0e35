"""Step sizes of the robot arm by the criteria of Zlochin & Baram.

    python -m benchmarks.papers.msd.robot_arm_steps

For HMC the largest ε of a ladder with fewer than 5 % rejections, for MSD the ε whose mean energy error is nearest to
0.05. What is rejected and how large errors are is measured over all runs, after a warm-up. An error is the absolute
change of the energy that the unadjusted dynamics keeps, in a draw's one step. The paper has the average error in the
Hamiltonian, around 0.05; it leaves open whether of absolute values, and over which runs.
"""

import math

import numpy as np

from benchmarks.arguments import count
from benchmarks.papers.msd.robot_arm_model import original
from benchmarks.papers.msd.robot_arm_samplers import SAMPLERS, sample_once
from benchmarks.study import option, read
from benchmarks.tables import show

REJECTIONS, ENERGY_ERROR = 0.05, 0.05
HMC_LADDER = (0.0002, 0.00025, 0.0003, 0.00035, 0.0004, 0.00045, 0.0005, 0.0006)
MSD_LADDER = (0.07, 0.08, 0.09, 0.1, 0.11)
PILOT = {"runs": 10, "draws": 1000, "dropped": 500}


def largest_step(rejections):
    """The last ε of ``{ε: share}``, in ascending order, before a share of 5 % or more; None if there is none."""
    allowed = None
    for step_size, share in rejections.items():
        if share >= REJECTIONS:
            break
        allowed = step_size
    return allowed


def nearest_step(errors):
    """The ε of ``{ε: error}`` whose error is nearest to 0.05 in ratio."""
    return min(errors, key=lambda step_size: abs(math.log(errors[step_size] / ENERGY_ERROR)))


def ladder(name, arm, pilot):
    """The runs of a sampler at each ε, ascending; for HMC up to the first that rejects too much."""
    is_msd = name.startswith("MSD")
    for step_size in MSD_LADDER if is_msd else HMC_LADDER:
        runs = sample_once(name, arm, **pilot, step_size=step_size)
        yield step_size, runs
        if not is_msd and runs.rejections.mean() >= REJECTIONS:
            return


def rows(names, arm, pilot):
    """A row for each sampler and ε, the last of a sampler with the choice."""
    for name in names:
        rejections, errors = {}, {}
        for step_size, runs in ladder(name, arm, pilot):
            rejections[step_size] = float(runs.rejections.mean())
            errors[step_size] = float(np.nanmean(runs.energy_error))
            worst = f"{100 * runs.rejections.max():.1f} %, {np.nanmax(runs.energy_error):.3f}"
            yield [name, step_size, f"{100 * rejections[step_size]:.1f} %", f"{errors[step_size]:.3f}", worst]
        chosen = nearest_step(errors) if name.startswith("MSD") else largest_step(rejections)
        yield [name, f"**{chosen}**"]


def main(argv=None):
    pilot = {name: option(value, type=count) for name, value in PILOT.items()}
    arguments = read(__doc__, argv, samplers=option(list(SAMPLERS), choices=SAMPLERS), **pilot)
    columns = ["sampler", "ε", "rejected", "mean energy error", "worst run"]
    show(columns, rows(arguments.samplers, original(), {name: getattr(arguments, name) for name in PILOT}))


if __name__ == "__main__":
    main()
