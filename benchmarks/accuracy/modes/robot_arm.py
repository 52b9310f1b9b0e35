"""Sequential Monte Carlo on MacKay's robot arm, whose posterior has many modes.

    python -m benchmarks.accuracy.modes.robot_arm [--init modes] [--particles 512] [--states 32] [--runs 10] [--seed 0]
    python -m benchmarks.accuracy.modes.robot_arm --init modes --separate --particles 1024 --states 16

Prints the test error of each run's posterior mean, the log evidence, gradients of each run (HMC100 of the page on the
robot arm makes 300,000), and the modes that particles are in, each with its log density and what Laplace's
approximation says of its log evidence, copies by signs and orders of hidden units included. Runs side by side begin
from the same descents; with `--separate` each has descents of its own.
"""

import math
import time

import numpy as np
import pyro
import torch

from benchmarks.papers.msd.robot_arm import mean_prediction, normalised_error, spread
from benchmarks.papers.msd.robot_arm_model import HIDDEN, climbed, flatten, log_density, model, original
from benchmarks.papers.msd.robot_arm_modes import labels
from benchmarks.study import option, read, switch
from pyro_manifold.infer import OHMC, SMC

LOG_COPIES = HIDDEN * math.log(2) + math.lgamma(HIDDEN + 1)


def laplace(mode, arm):
    """Log evidence of a mode and its copies by Laplace's approximation."""
    hessian = -torch.autograd.functional.hessian(lambda x: log_density(x, arm), mode)
    gaussian = len(mode) / 2 * math.log(2 * math.pi) - float(torch.logdet(hessian)) / 2
    return float(log_density(mode, arm)) + gaussian + LOG_COPIES


def modes_of(particles, arm, looked_at, seed):
    """``[(log density, Laplace's log evidence, share of the particles)]`` of the modes above some particles."""
    rows = np.random.default_rng(seed).integers(len(particles), size=looked_at)
    ends = torch.stack([climbed(particles[row], arm, max_nfev=2000, ftol=1e-10, xtol=1e-10) for row in rows])
    named = labels(log_density(ends, arm).numpy())
    return [
        (level, laplace(ends[int((named == level).argmax())], arm), (named == level).mean())
        for level in np.unique(named)[::-1]
    ]


def main(argv=None):
    arguments = read(
        __doc__, argv, init=option("prior", choices=["prior", "modes"]), particles=512,
        starts=option(64, "descents, for --init modes"), states=option(32, "of a chain at each level"),
        last_states=option(None, "of a chain at the last level", type=int), runs=10, seed=0,
        separate=switch("each run finds modes for itself"), looked_at=option(60, "particles whose modes are found"),
    )  # fmt: skip
    arm = original()
    began = time.process_time()
    first, runs = arguments.seed, arguments.runs
    groups = [(seed, 1) for seed in range(first, first + runs)] if arguments.separate else [(first, runs)]
    found = [particles(arm, seed, count, arguments) for seed, count in groups]
    seconds = time.process_time() - began
    draws = torch.cat([flatten(smc.get_samples(group_by_chain=True), 2) for smc in found])
    test = normalised_error(mean_prediction(draws, arm.x_test), arm.y_test).numpy()
    evidence = torch.cat([smc.log_evidences for smc in found]).numpy()
    print(f"\ntest error {spread(test)}, each {np.round(test, 3).tolist()}")
    print(f"log evidence {spread(evidence)}, each {np.round(evidence, 1).tolist()}")
    for smc in found:
        gradients = sum(level.steps for level in smc.levels) * arguments.particles // arguments.states
        print(f"{smc.evaluations} gradients for modes, {gradients} a run from there in {len(smc.levels)} levels")
    print(f"{seconds:.0f} s of processor time in all")
    for level, evidence, share in modes_of(draws.flatten(0, 1), arm, arguments.looked_at, arguments.seed):
        print(f"mode {level:.1f}: log evidence by Laplace {evidence:.1f}, {100 * share:.0f} % of the particles")


def particles(arm, seed, runs, arguments):
    """Result of SMC from this seed."""
    pyro.set_rng_seed(seed)
    names = {"chain_length": "states", "init": "init", "num_starts": "starts", "last_states": "last_states"}
    options = {name: getattr(arguments, argument) for name, argument in names.items()}
    smc = SMC(OHMC(model, target_accept_prob=0.8, trajectory_jitter=0.5), arguments.particles, runs, **options)
    smc.run(arm.x_train, arm.y_train)
    return smc


if __name__ == "__main__":
    main()
