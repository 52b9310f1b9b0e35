"""Variational families and optimisers with the same time of one core, against NUTS where it can be run.

    python -m benchmarks.papers.variational.compare spline --seconds 10 --ranks 0 1 2 4
    python -m benchmarks.papers.variational.compare ionosphere --seconds 5 --ranks 1 2 4
    python -m benchmarks.papers.variational.compare leukemia --seconds 60 --ranks 4 --seeds 5

Each method gets the best of its three step sizes, chosen by the ELBO of the training data after the same time (on
the first fold, with the first seed). Prints a Markdown table and keeps all figures in results/variational/.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics

import torch

from benchmarks.papers.variational import problems, splines
from benchmarks.papers.variational.methods import MEAN_FIELD, METHODS, Budget, best_step_size, draws, fit
from benchmarks.papers.variational.slang import slang
from benchmarks.papers.variational.truth import CACHE, ionosphere_truth, spline_truth
from benchmarks.tables import table


def spline_rows(names, ranks, budget, *_):
    """One row a method and rank: ELBO, error to the true curve, test log density."""
    split, truth = problems.spline_data()
    data = (split.x_train, split.y_train)
    for name, rank in pairs(names, ranks):
        size = best_step_size(METHODS[name], splines.model, data, rank, budget)
        done = fit(METHODS[name], splines.model, data, rank, size, budget, seed=1)
        if done.diverged:
            yield row(name, rank, size, [done], {})
            continue
        yield row(name, rank, size, [done], spline_figures(draws(done.guide, data), split, truth))


def ionosphere_rows(names, ranks, budget, *_):
    """Means over five folds, and their standard errors."""
    folds = problems.ionosphere_folds()
    for name, rank in pairs(names, ranks):
        first = (folds[0].x_train, folds[0].y_train)
        size = best_step_size(METHODS[name], problems.logistic, first, rank, budget)
        fits, figures = [], {}
        for fold in folds:
            data = (fold.x_train, fold.y_train)
            fits.append(fit(METHODS[name], problems.logistic, data, rank, size, budget, seed=1))
            if not fits[-1].diverged:
                collect(figures, classification(draws(fits[-1].guide, data)["coefficients"], fold))
        yield row(name, rank, size, fits, figures)


def leukemia_rows(names, ranks, budget, seeds, transform):
    """Means over seeds."""
    split = problems.leukemia_split(transform)
    data = (split.x_train, split.y_train)
    for name, rank in pairs(names, ranks):
        size = best_step_size(METHODS[name], problems.horseshoe, data, rank, budget.part(1 / 3))
        fits, figures = [], {}
        for seed in range(1, seeds + 1):
            fits.append(fit(METHODS[name], problems.horseshoe, data, rank, size, budget, seed))
            if fits[-1].diverged:
                continue
            samples = draws(fits[-1].guide, data, 300)
            found = classification(problems.horseshoe_slopes(samples), split, samples["intercept"])
            found["test errors of 34"] = 34 * found.pop("test error %") / 100
            collect(figures, found)
        yield row(name, rank, size, fits, figures)


def classification(coefficients, split, intercept=None):
    train = problems.evaluate(coefficients, split.x_train, split.y_train, intercept)
    test = problems.evaluate(coefficients, split.x_test, split.y_test, intercept)
    return {"train error %": 100 * train[0], "test error %": 100 * test[0], "test log-likelihood": test[1]}


def spline_figures(samples, split, truth):
    # The density is that of the test responses, whatever the error is taken to.
    error, density = problems.evaluate_spline(samples, split.x_test, split.y_test, truth)
    return {"error to the curve": [error], "test log density": [density]}


def collect(figures, new):
    for name, value in new.items():
        figures.setdefault(name, []).append(value)


def pairs(names, ranks):
    """The mean field once, every other method at every rank from 1."""
    return [(name, rank) for name in names for rank in ([0] if name == MEAN_FIELD else [r for r in ranks if r])]


def row(name, rank, step_size, fits, figures):
    return {
        "method": name,
        "rank": rank,
        "step size": step_size,
        "ELBO": [each.elbo for each in fits],
        "seconds": [each.seconds for each in fits],
        "ms/step": [1e3 * each.seconds / each.steps for each in fits],
        **figures,
        "curve": fits[0].curve,
    }


# ---- What the methods are held against ---------------------------------------------------------------------


def ionosphere_peers():
    figures = {}
    for fold, samples, _ in ionosphere_truth():
        collect(figures, classification(samples[::5], fold))
    yield {"method": "NUTS", "rank": "", "step size": "", **figures}
    for rank in (1, 2, 4):
        figures, seconds, bounds = {}, [], []
        for fold in problems.ionosphere_folds():
            guide, losses, spent = slang(fold.x_train, fold.y_train, rank)
            seconds.append(spent)
            bounds.append(-losses[-1])
            collect(figures, classification(guide.sample(1000), fold))
        yield {"method": "SLANG", "rank": rank, "step size": "", "ELBO": bounds, "seconds": seconds, **figures}


def spline_peers():
    split, truth, samples, _ = spline_truth()
    yield {"method": "NUTS", "rank": "", "step size": "", **spline_figures(samples, split, truth)}


PROBLEMS = {
    "spline": (spline_rows, spline_peers),
    "ionosphere": (ionosphere_rows, ionosphere_peers),
    "leukemia": (leukemia_rows, lambda: iter(())),
}
HIDDEN = ("curve",)


def table_of(rows):
    """Markdown, with the standard error of a mean over folds or the spread over seeds in brackets."""
    columns = list(dict.fromkeys(key for each in rows for key in each if key not in HIDDEN))
    return table(columns, [[cell(each.get(column, "")) for column in columns] for each in rows])


def cell(value):
    if not isinstance(value, list):
        return f"{value}"
    diverged = value.count(-math.inf)
    if diverged:
        return f"{diverged} of {len(value)} diverged"
    mean = statistics.fmean(value)
    digits = 1 if abs(mean) >= 20 else 2 if abs(mean) >= 1 else 3
    spread = f" ({statistics.stdev(value):.{digits}f})" if len(value) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--steps", type=int, help="the same number of steps for all, in place of the same time")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--transform", default="log", help="of the leukemia expressions")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--name", default="", help="added to the name of the file of figures")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    budget = Budget(arguments.seconds, arguments.steps)
    run, peers = PROBLEMS[arguments.problem]
    rows = list(peers())
    print(table_of(rows), flush=True)
    chosen = (arguments.methods, arguments.ranks, budget, arguments.seeds, arguments.transform)
    for each in run(*chosen):
        rows.append(each)
        print({key: value for key, value in each.items() if key not in HIDDEN}, flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / f"{arguments.problem}{arguments.name}.json").write_text(json.dumps(rows))
    print(table_of(rows))
    return rows


if __name__ == "__main__":
    main()
