"""MSD against Hamiltonian Monte Carlo on the robot arm, as in Zlochin & Baram (Neural Computation 13, 2001).

    python -m benchmarks.geometry.robot_arm --steps            # which step size each sampler can take
    python -m benchmarks.geometry.robot_arm --seeds 0 1 2      # errors and autocorrelations, one table a data set
    python -m benchmarks.geometry.robot_arm_cost               # operations and time of a draw
    python -m benchmarks.geometry.robot_arm_figure docs/images/robot_arm.png

Prints Markdown: for each sampler the normalised squared error of the posterior mean on test and training cases (mean
and standard deviation over runs; 1 is the noise), the mean autocorrelation of both groups of weights at lag 10,
divergences and acceptance. The data are simulated, not MacKay's. Draws are kept in results/geometry; a second call
reads them.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks.geometry.robot_arm_model import NOISE, model, network, position, simulate, unflatten
from benchmarks.geometry.robot_arm_samplers import PAPER, SAMPLERS, advance, sample_once
from benchmarks.tables import table
from pyro_manifold.infer import MSD

warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

GROUPS = {"input to hidden": "input_to_hidden", "hidden to output": "hidden_to_output"}
STEPS = {
    ("HMC100", "descended"): (0.0003, 0.0004, 0.0005, 0.0006),
    ("HMC100", "small"): (0.0003, 0.0005),
    ("MSD", "descended"): (0.05, 0.1, 0.15, 0.2),
    ("MSD", "small"): (0.05, 0.1, 0.15, 0.2),
    ("MSD, Jeffreys", "small"): (0.05, 0.1),
}
"""Step sizes to compare, for a sampler and a kind of start."""
LAG = 10


def normalised_error(prediction, y):
    """Squared error, mean over cases and components, in units of the noise variance, ``(runs,)``."""
    return (prediction - y).square().mean((-2, -1)) / NOISE**2


def mean_prediction(draws, x):
    """Posterior mean of the predictions of each run, ``(runs, cases, 2)``; one run at a time, for memory."""
    return torch.stack([network(unflatten(run), x).mean(0) for run in draws])


def autocorrelation(draws, site):
    """Autocorrelation of each run and lag, ``(runs, lags)``, mean over the weights of a site.

    A weight that never moves has none; it counts as 1.
    """
    import arviz

    weights = unflatten(draws)[site].flatten(2).movedim(1, 2).numpy()
    still = weights.std(-1, keepdims=True) == 0
    noise = np.random.default_rng(0).standard_normal(weights.shape)
    found = arviz.autocorr(np.where(still, noise, weights), axis=-1)
    return np.where(still, 1.0, found).mean(1)


def row(name, runs, arm):
    """One line of the table."""
    errors = [normalised_error(mean_prediction(runs.draws, x), y) for x, y in (arm[2:], arm[:2])]
    lagged = [autocorrelation(runs.draws, site)[:, LAG] for site in GROUPS.values()]
    return [
        name,
        *(spread(values) for values in (*errors, *lagged)),
        f"{int(runs.divergences.sum())}",
        f"{float(runs.acceptance.mean()):.2f}",
    ]


HEADINGS = ["test error", "training error", *(f"lag {LAG}, {group}" for group in GROUPS), "divergences", "accepted"]


def spread(values):
    values = np.asarray(values)
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}" if len(values) > 1 else f"{values.mean():.3f}"


def comparison(seed, names, options, steps):
    """The table of one data set; ``steps`` has ε of HMC and MSD where it is not the usual one."""
    arm, rows = simulate(seed), []
    for name in names:
        step = {"step_size": steps[name[:3]]} if steps.get(name[:3]) else {}
        rows.append([*row(name, sample_once(name, seed, **options, **step), arm), PAPER[name.split(",")[0]]])
    truth = [f"{float(normalised_error(position(x), y)):.3f}" for x, y in (arm[2:], arm[:2])]
    rows.append(["true function", *truth])
    return f"Data set {seed}\n\n" + table(["sampler", *HEADINGS, "paper, test error"], rows)


def step_sizes(seed, options):
    """The same for several ε; and what the adjusted version accepts where MSD has arrived."""
    arm, rows = simulate(seed), []
    for (name, start), steps in STEPS.items():
        for step in steps:
            runs = sample_once(name, seed, **options, step_size=step, start=start)
            adjusted = f"{adjusted_acceptance(runs, step, arm):.2f}" if (name, start) == ("MSD", "descended") else ""
            rows.append([name, start, f"{step:g}", *row(name, runs, arm)[1:], adjusted])
            print(rows[-1], flush=True)
    return table(["sampler", "start", "ε", *HEADINGS, "adjusted version accepts"], rows)


def adjusted_acceptance(runs, step_size, arm, draws=30):
    kernel = MSD(model, step_size=step_size, persistence=0.0, metropolis=True)
    mcmc, _ = advance(kernel, arm, unflatten(runs.draws[:, -1]), 0, draws)
    return float(np.mean(list(mcmc.diagnostics()["acceptance rate"].values())))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the simulated data sets")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--draws", type=int, default=3000, help="of a run, those dropped included")
    parser.add_argument("--dropped", type=int, default=1000)
    parser.add_argument("--hmc-step", type=float, help="of HMC, where its usual one is too long for the data set")
    parser.add_argument("--msd-step", type=float, help="of MSD, in place of its usual one")
    parser.add_argument("--steps", action="store_true", help="compare step sizes instead, with shorter runs")
    parser.add_argument("--write", type=Path, help="also write the tables here")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    options = {"runs": arguments.runs, "draws": arguments.draws, "dropped": arguments.dropped}
    if arguments.steps:
        tables = [step_sizes(arguments.seeds[0], options)]
    else:
        steps = {"HMC": arguments.hmc_step, "MSD": arguments.msd_step}
        tables = [comparison(seed, arguments.samplers, options, steps) for seed in arguments.seeds]
    text = "\n\n".join(tables) + "\n"
    print(text)
    if arguments.write:
        arguments.write.write_text(text)
    return tables


if __name__ == "__main__":
    main()
