"""Published models in this package, NumPyro and nutpie: effective draws a second and a gradient.

    python -m benchmarks.speed.published --only schools --seeds 0 1 2 --results published.json
    python -m benchmarks.speed.published --long --only schools --results published.json
    python -m benchmarks.speed.published --show --results published.json

Each run is a process of its own on one core, in float64, with empty caches. Runs that the file of results holds are
not made again, so that the whole can be made in parts, and ``--show`` prints the tables of all that it holds. Of each
package the setting with the best median rate counts, by each clock.
"""

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.estimates import effective_sizes, summary
from benchmarks.machine import machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.published.peers import NAMES
from benchmarks.stored import kept, read_json
from benchmarks.study import option, read, spread_of, switch
from benchmarks.tables import table

OURS = "pyro_manifold"
SETTINGS = {
    OURS: {"OHMC": {}},
    "NumPyro": {
        "vectorised": {},
        "sequential": {"chain_method": "sequential"},
        "vectorised, dense": {"dense_mass": True},
    },
    "nutpie": {"diagonal": {}, "low rank": {"low_rank": True}},
}
CHAINS, WHOLE, LONG = 4, (500, 500), (500, 5000)
CLOCKS = {"whole": "Whole runs, compiling included", "compiled": "Once everything is compiled"}


def run_key(name, package, setting, sizes, seed):
    return " | ".join([name, package, setting, f"{sizes[0]} + {sizes[1]}", str(seed)])


def measured(name, package, setting, sizes, seed, threads, limit):
    """Figures of one run: clocks, gradients, the smallest effective size, R-hat, and means with their errors."""
    options = {**SETTINGS[package][setting], "seed": seed}
    row = Setting(setting, package, CHAINS, *sizes, options)
    values, figures = measure_apart("benchmarks.problems.published.peers:PROBLEMS", name, row, threads, limit)
    if values is None:
        return figures
    found = summary(values)
    return figures | found | {"ess": min(found["ess_min"], *effective_sizes(values, "tail"))}


def seconds(run, clock):
    return run["seconds"] - (run["compiling"] if clock == "compiled" else 0.0)


def rate(run, clock):
    return run["ess"] / seconds(run, clock)


def processor_rate(run):
    return run["ess"] / run["cpu_seconds"]


def per_gradient(run):
    """Effective draws for a thousand gradients after warm-up."""
    return 1000 * run["ess"] / run["gradients_of_draws"]


def best_settings(runs, clock):
    """Choose for each package the setting with the best median rate: ``{package: (setting, {seed: run})}``.

    Args:
        runs: ``{(package, setting): {seed: run}}`` of one model.
        clock: a key of `CLOCKS`.
    """
    found = {}
    for (package, setting), by_seed in runs.items():
        ended = {seed: run for seed, run in by_seed.items() if "failed" not in run}
        if not ended:
            continue
        median = np.median([rate(run, clock) for run in ended.values()])
        if package not in found or median > found[package][0]:
            found[package] = median, setting, ended
    return {package: (setting, ended) for package, (_, setting, ended) in found.items()}


def pooled(by_seed):
    """Means over seeds of the estimates of each functional, and their standard errors."""
    names = next(iter(by_seed.values()))["means"]
    each = {name: np.array([run["means"][name] for run in by_seed.values()]) for name in names}
    return {name: (x[:, 0].mean(), np.sqrt((x[:, 1] ** 2).sum()) / len(x)) for name, x in each.items()}


def largest_distance(package, best):
    """Return the largest distance of a package's means from another's, in standard errors of both, and of what."""
    own, distances = pooled(best[package][1]), [(float("nan"), "–")]
    for other, (_, by_seed) in best.items():
        if other != package:
            theirs = pooled(by_seed)
            distances += [
                (abs(mean - theirs[name][0]) / np.hypot(error, theirs[name][1]), f"{name}, {other}")
                for name, (mean, error) in own.items()
            ]
    return max(distances[1:], default=distances[0])


def shares(best, package, figure):
    """Our figure by another package's, for each seed that both have."""
    if package == OURS:
        return []
    ours, theirs = (best.get(each, (None, {}))[1] for each in (OURS, package))
    return [figure(ours[seed]) / figure(theirs[seed]) for seed in theirs if seed in ours]


COLUMNS = {
    "whole": (
        "model", "package", "ESS", "R-hat", "seconds", "ESS/s", "ours / theirs", "CPU seconds", "ours / theirs",
        "gradients", "ESS per 1,000 gradients of draws", "ours / theirs", "divergences", "z",
    ),
    "compiled": ("model", "package", "ESS", "R-hat", "seconds", "ESS/s", "ours / theirs"),
}  # fmt: skip


def line(name, package, best, clock):
    """One row of a table: a package at its best setting on a model."""
    setting, by_seed = best[package]

    def cell(figure, form):
        return spread_of([figure(run) for run in by_seed.values()], form)

    def ratio(figure):
        return spread_of(shares(best, package, figure), ".2f")

    label = package if package == OURS else f"{package}, {setting}"
    known = [name, label, cell(lambda run: run["ess"], ".0f"), cell(lambda run: run["rhat"], ".3f")]
    known += [cell(partial(seconds, clock=clock), ".1f"), cell(partial(rate, clock=clock), ".1f")]
    known += [ratio(partial(rate, clock=clock))]
    if clock == "compiled":
        return known
    processor = [cell(lambda run: run["cpu_seconds"], ".1f"), ratio(processor_rate)]
    gradients = [cell(lambda run: run["gradients"], ".3g"), cell(per_gradient, ".1f"), ratio(per_gradient)]
    checks = [cell(lambda run: run["divergences"], ".0f"), f"{largest_distance(package, best)[0]:.1f}"]
    return [*known, *processor, *gradients, *checks]


def overview(models, clock):
    """Models on which we are ahead, and the geometric mean, least and largest of median ratios, beside each package."""
    figures = {"ESS/s": partial(rate, clock=clock)}
    if clock == "whole":
        figures |= {"ESS per CPU second": processor_rate, "ESS per gradient": per_gradient}
    rows = []
    for package in SETTINGS:
        for title, figure in figures.items():
            found = {name: shares(best, package, figure) for name, best in models.items() if package in best}
            medians = {name: float(np.median(each)) for name, each in found.items() if each}
            if not medians:
                continue
            worst, finest = min(medians, key=medians.get), max(medians, key=medians.get)
            ahead = f"{sum(value > 1 for value in medians.values())} of {len(medians)}"
            mean = f"{np.exp(np.mean(np.log(list(medians.values())))):.2f}"
            ends = [f"{medians[name]:.2f}, {name}" for name in (worst, finest)]
            rows.append([package, title, ahead, mean, *ends])
    return table(("package", "of", "ours ahead", "geometric mean of ratios", "least", "largest"), rows)


def failures(runs):
    """Sentences for runs that gave no figures."""
    return [f"{key}: {run['failed']}." for key, run in runs.items() if "failed" in run]


def page(results, names, sizes):
    """Tables of the runs of some models, for each clock."""
    grouped = {name: {} for name in names}
    for key, run in results.items():
        name, package, setting, lengths, seed = key.split(" | ")
        if name in grouped and lengths == f"{sizes[0]} + {sizes[1]}":
            grouped[name].setdefault((package, setting), {})[int(seed)] = run
    texts = []
    for clock, title in CLOCKS.items():
        models = {name: best_settings(runs, clock) for name, runs in grouped.items() if runs}
        rows = [line(name, each, best, clock) for name, best in models.items() for each in SETTINGS if each in best]
        heading = f"{title}: {CHAINS} chains × ({sizes[0]} + {sizes[1]})"
        texts.append(f"### {heading}\n\n{table(COLUMNS[clock], rows)}\n\n{overview(models, clock)}\n")
    return "\n".join([*texts, *failures(results)])


def main(argv=None):
    arguments = read(
        __doc__, argv, only=option([""], "parts of the names of models"),
        packages=option(list(SETTINGS), choices=list(SETTINGS)), seeds=[0, 1, 2],
        long=switch("5,000 draws in place of 500"),
        sizes=option(None, "warm-up and draws of each chain, in place of both", type=int, nargs=2),
        results=option(None, "file of runs, read and extended", type=Path),
        show=switch("print tables of the file and run nothing"), threads=1,
        limit=option(7200, "seconds after which a run counts as failed"),
    )  # fmt: skip
    sizes = tuple(arguments.sizes or (LONG if arguments.long else WHOLE))
    names = [name for name in NAMES if any(part in name for part in arguments.only)]
    path, results = arguments.results, {}
    settings = [(package, setting) for package in arguments.packages for setting in SETTINGS[package]]
    wanted = [(name, *each, sizes, seed) for seed in arguments.seeds for name in names for each in settings]
    for run in wanted if not arguments.show else ():
        make = partial(measured, *run, arguments.threads, arguments.limit)
        results[run_key(*run)] = kept(path, run_key(*run), make)
    results |= read_json(path) if path and path.exists() else {}
    print(f"## Published models\n\n{machine(arguments.threads)}\n\n{page(results, names, sizes)}", flush=True)


if __name__ == "__main__":
    main()
