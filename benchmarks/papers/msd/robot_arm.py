"""MSD against Hamiltonian Monte Carlo on MacKay's robot arm, as in Zlochin & Baram (Neural Computation 13, 2001).

    python -m benchmarks.papers.msd.robot_arm_steps              # step sizes by the paper's criteria
    python -m benchmarks.papers.msd.robot_arm                    # errors and autocorrelations, errors by mode
    python -m benchmarks.papers.msd.robot_arm_cost               # operations and time of a draw
    python -m benchmarks.papers.msd.robot_arm_figure docs/images/robot_arm.png

Prints Markdown: for each sampler the normalised squared error of the posterior mean on test and training cases, from
every twentieth draw (mean and standard deviation over runs; 1 is the noise), the mean autocorrelation of both groups
of weights at lag 10, rejections, energy errors and divergences; and test errors by the mode that a run sits in. Draws
are kept in results/robot_arm; a second call reads them. The data are downloaded, or read from PYRO_MANIFOLD_DATA.
"""

from functools import partial

import numpy as np
import torch

from benchmarks.arguments import count, natural, new_file, positive
from benchmarks.papers.msd.robot_arm_model import NOISE, log_density, network, original, position, unflatten
from benchmarks.papers.msd.robot_arm_modes import TOLERANCE, labels, mode_levels
from benchmarks.papers.msd.robot_arm_samplers import PAPER, SAMPLERS, STARTS, STEP_SIZES, sample_once
from benchmarks.pictures import pyplot
from benchmarks.study import option, parser_of, set_up
from benchmarks.tables import table, with_deviation
from pyro_manifold import diagnostics

GROUPS = {"input to hidden": "input_to_hidden", "hidden to output": "hidden_to_output"}
EVERY = 20
"""One draw of so many counts for errors: 100 of a run's 2,000, as in the paper."""
LAG = 10
spread = partial(with_deviation, digits=3)
HEADINGS = ["sampler", "ε", "test error", "paper", "training error", *(f"lag {LAG}, {group}" for group in GROUPS)]
HEADINGS += ["rejected", "energy error", "divergences"]


def every_twentieth(draws):
    """The draws of each run that errors are made of, ``(runs, draws // 20, 42)``; the last draw is one of them."""
    return draws[:, EVERY - 1 :: EVERY]


def normalised_error(prediction, y):
    """Squared error, mean over cases and components, in units of the noise variance, ``(runs,)``."""
    return (prediction - y).square().mean((-2, -1)) / NOISE**2


def mean_prediction(draws, x):
    """Posterior mean of the predictions of each run, ``(runs, cases, 2)``; one run at a time, for memory."""
    return torch.stack([network(unflatten(run), x).mean(0) for run in draws])


def errors(draws, x, y):
    """Error of the posterior mean of each run, ``(runs,)``."""
    return normalised_error(mean_prediction(every_twentieth(draws), x), y).numpy()


def autocorrelation(draws, site):
    """Autocorrelation of each run and lag, ``(runs, lags)``, mean over the weights of a site.

    A weight that never moves has none; it counts as 1.
    """
    weights = unflatten(draws)[site].flatten(2).movedim(1, 2).numpy()
    still = weights.std(-1, keepdims=True) == 0
    noise = np.random.default_rng(0).standard_normal(weights.shape)
    found = diagnostics.autocorrelations(np.where(still, noise, weights))
    return np.where(still, 1.0, found).mean(1)


def autocorrelations(found, lags, style, size):
    """Figure of mean autocorrelations of both groups of weights, with one standard deviation over runs, and its axes.

    Args:
        found: ``{sampler: runs}``.
        lags: the largest.
        style: from the name of a sampler to options of a line.
        size: of the figure, in inches.
    """
    plt = pyplot()

    fig, panels = plt.subplots(1, 2, figsize=size, sharey=True)
    for axes, (title, site) in zip(panels, GROUPS.items(), strict=True):
        for name, runs in found.items():
            values = autocorrelation(runs.draws, site)[:, : lags + 1]
            mean, deviation = values.mean(0), values.std(0, ddof=1)
            (line,) = axes.plot(mean, **{"label": name, **style(name)})
            axes.fill_between(
                range(len(mean)), mean - deviation, mean + deviation, color=line.get_color(), alpha=0.12, lw=0
            )
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
        axes.set(title=f"{title} weights", xlabel="lag in draws", xlim=(0, lags))
    panels[0].set_ylabel("autocorrelation")
    return fig, panels


def row(name, step_size, runs, arm):
    """One line of the table of samplers."""
    test, training = errors(runs.draws, *arm[2:]), errors(runs.draws, *arm[:2])
    lags = [spread(autocorrelation(runs.draws, site)[:, LAG]) for site in GROUPS.values()]
    rejected, energy = f"{100 * runs.rejections.mean():.1f} %", np.nanmean(runs.energy_error)  # if all are, it has none
    errors_of = spread(test), PAPER[name.split(",")[0]], spread(training)
    return [name, f"{step_size:g}", *errors_of, *lags, rejected, f"{energy:.3f}", f"{int(runs.divergences.sum())}"]


def by_mode(found, arm):
    """Test errors by mode, the highest first: a row for each mode, a column for each sampler.

    The second column is the mean log density of the draws of all runs in a mode.
    """
    last = {name: mode_levels(runs.draws[:, -1], arm) for name, runs in found.items()}
    named = labels(np.concatenate(list(last.values()))).reshape(len(found), -1)
    tests = np.stack([errors(runs.draws, *arm[2:]) for runs in found.values()])
    levels = np.stack([log_density(every_twentieth(runs.draws), arm).mean(1) for runs in found.values()])
    rows = []
    for mode in np.unique(named)[::-1]:
        here = named == mode
        cells = [f"{spread(tests[k, here[k]])} ({here[k].sum()})" if here[k].any() else "" for k in range(len(found))]
        rows.append([f"{mode:.1f}", f"{levels[here].mean():.1f}", f"{spread(tests[here])} ({here.sum()})", *cells])
    return table(["log density of the mode", "of draws", "all samplers", *found], rows)


def moved(found, arm):
    """Number of runs of each sampler that have their first and last draw below different modes."""
    ends = {name: [mode_levels(runs.draws[:, k], arm) for k in (0, -1)] for name, runs in found.items()}
    counts = {name: int((np.ptp(np.stack(pair), 0) > TOLERANCE).sum()) for name, pair in ends.items()}
    return "Runs whose first draw is in another mode: " + ", ".join(f"{name} {n}" for name, n in counts.items())


def main(argv=None):
    parser = parser_of(
        __doc__, samplers=option(list(SAMPLERS), choices=SAMPLERS), runs=option(10, type=count),
        draws=option(3000, "of a run, those dropped included", type=count), dropped=option(1000, type=natural),
        step_size=option(None, "of all samplers named, in place of their own", type=positive),
        start=option("descended", "initial values", choices=STARTS),
        seed=option(0, "of the initial values and of the runs"),
        write=option(None, "also write the tables here", type=new_file),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up()
    if arguments.draws - arguments.dropped <= 2 * LAG:
        parser.error(
            f"--draws {arguments.draws}: expected --dropped and more than {2 * LAG} others, for autocorrelations."
        )
    text = tables(original(), arguments)
    print(text)
    if arguments.write:
        arguments.write.write_text(text)
    return text


def tables(arm, arguments):
    """Both tables, from runs with the settings asked for."""
    options = {name: getattr(arguments, name) for name in ("runs", "draws", "dropped", "start", "seed")}
    steps = {name: arguments.step_size or STEP_SIZES[name] for name in arguments.samplers}
    found = {name: sample_once(name, arm, **options, step_size=step) for name, step in steps.items()}
    lines = [row(name, steps[name], runs, arm) for name, runs in found.items()]
    truth = [f"{float(normalised_error(position(x), y)):.3f}" for x, y in (arm[2:], arm[:2])]
    lines.append(["true function", "", truth[0], "", truth[1]])
    return "\n\n".join([table(HEADINGS, lines), by_mode(found, arm), moved(found, arm)]) + "\n"


if __name__ == "__main__":
    main()
