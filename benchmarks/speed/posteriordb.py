"""The posteriors of posteriordb that have reference draws, in this package, NumPyro and nutpie: right, and how fast.

    git clone https://github.com/stan-dev/posteriordb
    export POSTERIORDB=posteriordb/posterior_database
    python -m benchmarks.speed.posteriordb --results posteriordb.json
    python -m benchmarks.speed.posteriordb --long --results posteriordb.json
    python -m benchmarks.speed.posteriordb --show --results posteriordb.json

Each run is a process of its own on one core, in float64, with empty caches: 4 chains of 1,000 iterations of warm-up and
1,000 draws, compiling included, or 10,000 draws (``--long``), compiling left out. Of each peer the setting with the
better rate counts. z are the largest distances of means and of standard deviations from those of the reference draws,
in standard errors of both. Models and data are read from the folder, and belong to the authors of posteriordb.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.estimates import effective_sizes, mean_and_error, summary
from benchmarks.machine import machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.posteriordb import Problem, names
from benchmarks.speed.published import run_key
from benchmarks.stored import kept, read_json
from benchmarks.study import option, read, switch
from benchmarks.tables import table

OURS = "pyro_manifold"
SETTINGS = {
    OURS: {"OHMC": {}},
    "NumPyro": {"diagonal": {}, "dense": {"dense_mass": True}},
    "nutpie": {"diagonal": {}, "low rank": {"low_rank": True}},
}
CHAINS, SHORT, LONG = 4, (1000, 1000), (1000, 10_000)


def measured(name, package, setting, sizes, seed, limit):
    """Figures of one run, and its distances from the reference draws."""
    row = Setting(setting, package, CHAINS, *sizes, {**SETTINGS[package][setting], "seed": seed})
    values, figures = measure_apart("benchmarks.problems.posteriordb:PROBLEMS", name, row, 1, limit)
    if values is None:
        return figures
    found = summary(values)
    z, z_of_deviations = distances(values, Problem(os.environ["POSTERIORDB"], name).references())
    sizes = {"ess": min(found["ess_min"], *effective_sizes(values, "tail")), "rhat": found["rhat"]}
    kept = {name: figures[name] for name in ("seconds", "compiling", "cpu_seconds", "divergences")}
    return kept | sizes | {"parameters": len(values), "z": z, "z_of_deviations": z_of_deviations}


def distances(values, references):
    """Largest distances of means, and of standard deviations, from the reference, in standard errors of both."""
    z, of_deviations = [], []
    for name, known in references.items():
        x = values[name]
        mean, error = mean_and_error(x)
        variance, error_of_variance = mean_and_error((x - known.mean) ** 2)
        deviation = np.sqrt(max(variance - (mean - known.mean) ** 2, 0.0))
        z.append(abs(mean - known.mean) / np.hypot(error, known.mean_error))
        error_of_deviation = error_of_variance / (2 * known.deviation)
        of_deviations.append(abs(deviation - known.deviation) / np.hypot(error_of_deviation, known.deviation_error))
    return max(z), max(of_deviations)


def rate(run, long):
    """Effective draws for a second: of the processor with compiling, or on the clock without it."""
    return run["ess"] / (run["seconds"] - run["compiling"] if long else run["cpu_seconds"])


def best(runs, name, package, sizes, seeds, long):
    """The setting of a package with the better median rate, and its runs."""
    found = {}
    for setting in SETTINGS[package]:
        each = [runs.get(run_key(name, package, setting, sizes, seed)) for seed in seeds]
        ended = [run for run in each if run is not None and "failed" not in run]
        if ended:
            found[setting] = ended
    if not found:
        return None, []
    setting = max(found, key=lambda each: np.median([rate(run, long) for run in found[each]]))
    return setting, found[setting]


def line(runs, name, peers, sizes, seeds, long):
    """A row of the table, and our rate by that of each peer."""
    _, ours = best(runs, name, OURS, sizes, seeds, long)
    if not ours:
        return None, {}
    worst = {figure: max(run[figure] for run in ours) for figure in ("z", "z_of_deviations", "rhat")}
    own, ratios = np.median([rate(run, long) for run in ours]), {}
    row = [name, ours[0]["parameters"], f"{worst['z']:.1f}", f"{worst['z_of_deviations']:.1f}", f"{worst['rhat']:.3f}"]
    row += [f"{np.median([run['cpu_seconds'] for run in ours]):.1f}", f"{own:.0f}"]
    for package in peers:
        setting, theirs = best(runs, name, package, sizes, seeds, long)
        if not theirs:
            row += ["–", "–"]
            continue
        rhat = max(run["rhat"] for run in theirs)
        ratios[package] = own / np.median([rate(run, long) for run in theirs])
        row += [f"{ratios[package]:.2f}", f"{setting}, {rhat:.3f}"]
    return row, ratios


def page(runs, wanted, sizes, seeds, long):
    clock = "once everything is compiled" if long else "compiling included"
    length = f"| {sizes[0]} + {sizes[1]} |"
    peers = [each for each in list(SETTINGS)[1:] if any(f"| {each} |" in key and length in key for key in runs)]
    head = ["posterior", "parameters", "z", "z of deviations", "R-hat", "CPU s", "ESS/s"]
    for peer in peers:
        head += [f"by {peer}'s", "setting, R-hat"]
    lines = [line(runs, name, peers, sizes, seeds, long) for name in wanted]
    rows = [row for row, _ in lines if row]
    quartiles = []
    for package in peers:
        found = np.array([ratios[package] for _, ratios in lines if package in ratios])
        if len(found):
            least, lower, median, upper, largest = np.quantile(found, (0, 0.25, 0.5, 0.75, 1))
            figures = f"{least:.2f}", f"{lower:.2f}", f"{median:.2f}", f"{upper:.2f}", f"{largest:.1f}"
            quartiles.append((package, len(found), int((found > 1).sum()), *figures))
    overview = table(
        ("ours by", "posteriors", "above 1", "least", "quartile", "median", "quartile", "largest"), quartiles
    )
    title = f"### {CHAINS} chains × ({sizes[0]} + {sizes[1]}), {clock}"
    return f"{title}\n\n{overview}\n\n{table(head, rows)}\n"


def main(argv=None):
    arguments = read(
        __doc__, argv, only=option([""], "parts of names"), seeds=[0], long=switch("10,000 draws, compiling left out"),
        packages=option(list(SETTINGS), choices=list(SETTINGS)),
        sizes=option(None, "warm-up and draws of each chain, in place of both", type=int, nargs=2),
        results=option(None, "file of runs, read and extended", type=Path), limit=option(1800, "seconds of a run"),
        show=switch("print the tables of the file and run nothing"),
    )  # fmt: skip
    if "POSTERIORDB" not in os.environ:
        raise SystemExit("Set POSTERIORDB to the folder posterior_database of a checkout of stan-dev/posteriordb.")
    sizes = tuple(arguments.sizes or (LONG if arguments.long else SHORT))
    wanted = [name for name in names(os.environ["POSTERIORDB"]) if any(part in name for part in arguments.only)]
    path, runs = arguments.results, {}
    for package in arguments.packages if not arguments.show else ():
        for name in wanted:
            for setting in SETTINGS[package]:
                for seed in arguments.seeds:
                    key = run_key(name, package, setting, sizes, seed)
                    make = partial(measured, name, package, setting, sizes, seed, arguments.limit)
                    runs[key] = kept(path, key, make)
    runs |= read_json(path) if path and path.exists() else {}
    print(f"{machine(1)}\n\n{page(runs, wanted, sizes, arguments.seeds, arguments.long)}", flush=True)


if __name__ == "__main__":
    main()
