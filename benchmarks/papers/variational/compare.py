"""The experiments of Zhou, Gao, Tran & Gerlach (arXiv 1902.03718): variational families and optimisers.

    python -m benchmarks.papers.variational.compare ionosphere    table 3: five folds
    python -m benchmarks.papers.variational.compare leukemia      table 4: 38 patients to train, 34 to test
    python -m benchmarks.papers.variational.compare spline        section 4.1: four ranks, repeated fits

All methods take the same number of steps. The step size of each is the one with the highest ELBO of the training data
after the same number of steps, on leukemia after a quarter of it (on the first fold, with the first seed). The search
goes on beyond its first three until the best is not the smallest or the largest. Prints a Markdown table and keeps all
figures in results/variational/, where a second call goes on if the first was stopped. NUTS is run once and kept there.
"""

import math
import statistics
from collections import Counter
from functools import cache, partial

import numpy as np
import pyro

from benchmarks.arguments import count, natural, positive, without_effect
from benchmarks.papers.variational import problems, splines
from benchmarks.papers.variational.methods import (
    FIXED_RANK,
    MEAN_FIELD,
    METHODS,
    MIXED,
    PLAIN,
    STEPS,
    VAFC,
    Budget,
    best_step_size,
    draws,
    fit,
    mean_field_by,
)
from benchmarks.papers.variational.slang import slang
from benchmarks.papers.variational.truth import CACHE, ionosphere_truth, spline_truth
from benchmarks.stored import read_json, write_json
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import table

TABLE_3 = {
    MEAN_FIELD: "0.64 / 7.65 / 12.5", VAFC: "0.36 / 8.22 / 23.0", "SLANG": "7.55 / 14.20 / 190.9",
    "Stiefel basic": "0.36 / 7.65 / 25.0", "Stiefel momentum": "0.43 / 7.65 / 24.7",
    "Stiefel RMSProp": "0.43 / 7.09 / 25.3", "Stiefel AdaDelta": "0.43 / 7.37 / 27.3",
    "Grassmann basic": "1.00 / 7.38 / 24.8", "Grassmann momentum": "0.71 / 7.38 / 24.8",
    "Grassmann RMSProp": "0.71 / 7.09 / 24.4", "Grassmann AdaDelta": "0.64 / 7.09 / 25.6",
}  # fmt: skip
"""The paper's training error, test error, both in %, and seconds."""

TABLE_4 = {
    MEAN_FIELD: "0 / 7 / 64", VAFC: "0 / 3 / 8,022",
    "Stiefel basic": "0 / 2 / 10,014", "Stiefel momentum": "0 / 2 / 10,032",
    "Stiefel RMSProp": "0 / 2 / 10,011", "Stiefel AdaDelta": "0 / 2 / 10,005",
    "Grassmann basic": "0 / 2 / 6,483", "Grassmann momentum": "0 / 2 / 6,438",
    "Grassmann RMSProp": "0 / 3 / 6,591", "Grassmann AdaDelta": "0 / 2 / 6,203",
}  # fmt: skip
"""The paper's errors of 38 and of 34, and seconds."""

PAPER = "paper"
GRID = np.linspace(0, 1, 101)  # where fitted curves are kept


def fit_all(method, model, cases, rank, step_size, budget, evaluate):
    """Fits of ``[(split, seed)]``, and the figures of ``evaluate(draws, split)`` of those that have not diverged."""
    fits, figures = [], {}
    for split, seed in cases:
        fits.append(fit(method, model, (split.x_train, split.y_train), rank, step_size, budget, seed))
        if not fits[-1].diverged:
            collect(figures, evaluate(draws(fits[-1].guide), split))
    return fits, figures


def spline_row(name, rank, budget, seeds, arguments):
    """ELBO, error to the true curve and test log density, over seeds."""
    split, truth = data_of("spline", outliers=arguments.outliers)
    method = mean_field_by(name.removeprefix(f"{MEAN_FIELD} ")) if name not in METHODS else METHODS[name]
    grid, curves = splines.basis(GRID), []
    model = spline_model(arguments.outliers, arguments.prior_scale)
    size = best_step_size(method, model, (split.x_train, split.y_train), rank, budget)

    def evaluate(samples, split):
        curves.append((samples["coefficients"] @ grid.mT).mean(0).tolist())
        return spline_figures(samples, split, truth, arguments.outliers)

    cases = [(split, seed) for seed in range(1, seeds + 1)]
    fits, figures = fit_all(method, model, cases, rank, size, budget, evaluate)
    return row(name, rank, size, fits, figures) | {"fitted": curves[0] if curves else None}


def ionosphere_row(name, rank, budget, *_):
    """Values of five folds."""
    folds, method, model = data_of("ionosphere"), METHODS[name], problems.logistic
    size = best_step_size(method, model, (folds[0].x_train, folds[0].y_train), rank, budget)

    def evaluate(samples, fold):
        return classification(samples["coefficients"], fold)

    fits, figures = fit_all(method, model, [(fold, 1) for fold in folds], rank, size, budget, evaluate)
    return row(name, rank, size, fits, figures, TABLE_3)


def leukemia_row(name, rank, budget, seeds, arguments):
    """Values of several seeds."""
    split, method, model = data_of("leukemia", arguments.transform), METHODS[name], problems.horseshoe
    given = tuple(arguments.sizes or ())
    size = given or best_step_size(method, model, (split.x_train, split.y_train), rank, budget.part(0.25))
    wrong = []

    def evaluate(samples, split):
        slopes, intercept = problems.horseshoe_slopes(samples), samples["intercept"]
        wrong.append(problems.by_case(slopes, split.x_test, split.y_test, intercept)[0].nonzero().flatten().tolist())
        found = classification(slopes, split, intercept)
        return {"test errors of 34": 34 * found.pop("test error %") / 100} | found

    cases = [(split, seed) for seed in range(1, seeds + 1)]
    fits, figures = fit_all(method, model, cases, rank, size, budget, evaluate)
    return row(name, rank, size, fits, figures, TABLE_4) | {"wrong": wrong}


def often_wrong(rows):
    """Test patients, numbered from 39 as in the data, that a method has wrong in most of its fits."""
    for each in (each for each in rows if each.get("wrong")):
        counts = Counter(39 + patient for fit in each["wrong"] for patient in fit)
        print(f"{each['method']}: {[k for k, count in sorted(counts.items()) if 2 * count > len(each['wrong'])]}")


@cache
def spline_model(outliers, prior_scale):
    """One model for all rows, whose rates are found once."""
    return partial(splines.model, outliers=outliers, prior_scale=prior_scale)


@cache
def data_of(problem, transform="log", outliers=splines.OUTLIERS):
    """The problem's data, loaded once."""
    if problem == "leukemia":
        return problems.leukemia_split(transform)
    return problems.spline_data(outliers=outliers) if problem == "spline" else problems.ionosphere_folds()


def classification(coefficients, split, intercept=None):
    train = problems.evaluate(coefficients, split.x_train, split.y_train, intercept)
    test = problems.evaluate(coefficients, split.x_test, split.y_test, intercept)
    return {"train error %": 100 * train[0], "test error %": 100 * test[0], "test log-likelihood": test[1]}


def spline_figures(samples, split, truth, outliers=splines.OUTLIERS):
    # The density is that of the test responses, whatever the error is taken to.
    error, density = problems.evaluate_spline(samples, split.x_test, split.y_test, truth, outliers)
    return {"error to the curve": error, "test log density": density}


def collect(figures, new):
    for name, value in new.items():
        figures.setdefault(name, []).append(value)


def pairs(names, ranks):
    """Pairs of method and rank, and the mean field with each optimiser of the paper if rank 0 is among the ranks."""
    several = [steps for steps in STEPS if any(name.split()[-1] == steps for name in names)]
    mean_fields = [(f"{MEAN_FIELD} {steps}", 0) for steps in several if 0 in ranks]
    return mean_fields + [
        (name, rank) for name in names for rank in ([0] if name == MEAN_FIELD else [r for r in ranks if r])
    ]


def row(name, rank, step_size, fits, figures, paper=None):
    """A row of a table; without figures if a fit diverged, since those of the other folds are no mean over folds."""
    if any(each.diverged for each in fits):
        figures = dict.fromkeys(figures, "--")
    return {
        "method": name, "rank": rank, **({} if paper is None else {PAPER: paper.get(name.removesuffix(PLAIN), "")}),
        "step size": " / ".join(map(str, step_size)) if isinstance(step_size, tuple) else step_size,
        **figures, "ELBO": [each.elbo for each in fits],
        "seconds": [each.seconds for each in fits],
        "curve": mean_curve([each.curve for each in fits if not each.diverged]),
    }  # fmt: skip


def mean_curve(curves):
    """Mean over fits, as far as all of them go."""
    return [(points[0][0], statistics.fmean(value for _, value in points)) for points in zip(*curves, strict=False)]


# ---- What the methods are held against ---------------------------------------------------------------------


def ionosphere_peers():
    figures = {}
    for fold, samples, _ in ionosphere_truth():
        collect(figures, classification(samples[::5], fold))
    yield {"method": "NUTS", "rank": "", PAPER: "", "step size": "", **figures}
    for rank in (1, 2, 4):
        figures, seconds, bounds = {}, [], []
        for fold in problems.ionosphere_folds():
            guide, losses, spent = slang(fold.x_train, fold.y_train, rank)
            seconds.append(spent)
            bounds.append(-losses[-1])
            collect(figures, classification(guide.sample(1000), fold))
        found = {**figures, "ELBO": bounds, "seconds": seconds}
        yield {"method": "SLANG", "rank": rank, PAPER: TABLE_3["SLANG"], "step size": "", **found}


def spline_peers():
    split, truth, samples, _ = spline_truth()
    fitted = (samples["coefficients"] @ splines.basis(GRID).mT).mean(0).tolist()
    figures = {name: [value] for name, value in spline_figures(samples, split, truth).items()}
    yield {"method": "NUTS", "rank": "", "step size": "", **figures, "fitted": fitted}


PROBLEMS = {
    "spline": (spline_row, spline_peers),
    "ionosphere": (ionosphere_row, ionosphere_peers),
    "leukemia": (leukemia_row, lambda: iter(())),
}
DEFAULT_STEPS = {"spline": 2000, "ionosphere": 3000, "leukemia": 10_000}
DEFAULT_PARTICLES = {"spline": 8, "ionosphere": 8, "leukemia": 1}
DEFAULT_RANKS = {"spline": [0, 1, 2, 4], "ionosphere": [4], "leukemia": [4]}
OF_LEUKEMIA = [
    name
    for name in METHODS
    if name.removesuffix(PLAIN) in TABLE_4 or name == f"{FIXED_RANK} RMSProp" or name.endswith((MIXED, " Adam"))
]
UNSCALED = [f"{FIXED_RANK} {rule}{PLAIN}" for rule in STEPS]  # steps in W itself
OF_THE_IONOSPHERE = [name for name in METHODS if name not in UNSCALED]
OF_THE_SPLINES = [name for name in METHODS if name == VAFC or name.split()[-1] in STEPS or name.endswith(" Adam")]
BY_DEFAULT = {"spline": OF_THE_SPLINES + UNSCALED, "ionosphere": OF_THE_IONOSPHERE, "leukemia": OF_LEUKEMIA}
HIDDEN = ("curve", "fitted", "settings", "wrong")


def table_of(rows):
    """Markdown, with the standard deviation over folds or seeds in brackets."""
    columns = list(dict.fromkeys(key for each in rows for key in each if key not in HIDDEN))
    return table(columns, [[cell(each.get(column, "")) for column in columns] for each in rows])


def cell(value):
    """Mean and standard deviation of a list; -- where every fit diverged."""
    if not isinstance(value, list):
        return f"{value}"
    finite = [each for each in value if each != -math.inf]
    if not finite:
        return "--"
    if len(finite) < len(value):
        return f"{len(value) - len(finite)} of {len(value)} diverged"
    mean = statistics.fmean(value)
    digits = 1 if abs(mean) >= 20 else 2 if abs(mean) >= 1 else 3
    spread = f" ({statistics.stdev(value):.{digits}f})" if len(value) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def stored(path, settings):
    """Rows of earlier calls, by method and rank; SystemExit if they have other settings."""
    rows = read_json(path) if path.exists() else []
    for found in rows:
        if found.get("settings", settings) != settings:
            raise SystemExit(
                f"{path} has fits with {found['settings']} (seconds, steps, draws of an estimate, seeds, "
                f"transformation, on the splines outliers and prior scale), and this call has {settings}: pass another "
                "--name, or delete the file."
            )
    return {(each["method"], each["rank"]): each for each in rows}


def main(argv=None):
    parser = parser_of(
        __doc__, steps=option(None, "of each fit; default: 3000, 2000 on the splines, 10,000 on leukemia", type=count),
        seconds=option(None, "the same time of one core for all, in place of the same steps", type=positive),
        particles=option(None, "draws in each estimate, by default 8, on leukemia 1", type=count),
        ranks=option(None, "by default 4, on the splines 0, 1, 2 and 4", type=natural, nargs="+"),
        seeds=option(None, "fits of leukemia and of the splines, by default 10", type=count),
        transform=option("log", "of leukemia's expressions", choices=("log", "arrays", "none")),
        outliers=option(splines.OUTLIERS, "share of outliers of the splines, also in the model", type=positive),
        prior_scale=option(1.0, "factor of the prior scale of the splines' coefficients", type=positive),
        sizes=option(None, "of leukemia's steps, for B and for the rest, without a search", type=positive, nargs=2),
        methods=option(None, "names of `methods.METHODS`", nargs="+", choices=METHODS, metavar="METHOD"),
        afresh=switch("fit these methods again"), alone=switch("without NUTS and SLANG"),
        name=option("", "added to the name of the file of figures"),
    )  # fmt: skip
    parser.add_argument("problem", choices=PROBLEMS)
    arguments = parser.parse_args(argv)
    set_up()
    problem = arguments.problem
    if problem == "ionosphere":
        without_effect(parser, arguments, ("seeds",), "on ionosphere, which has five folds")
    if problem != "leukemia":
        without_effect(parser, arguments, ("transform", "sizes"), "except on leukemia")
    if problem != "spline":
        without_effect(parser, arguments, ("outliers", "prior_scale"), "except on the splines")
    if problem != "spline" and 0 in (arguments.ranks or ()):
        parser.error("--ranks 0 is for the splines: name the mean field by --methods.")
    steps = None if arguments.seconds else arguments.steps or DEFAULT_STEPS[problem]
    budget = Budget(arguments.seconds or 0.0, steps, arguments.particles or DEFAULT_PARTICLES[problem])
    run, peers = PROBLEMS[problem]
    methods = arguments.methods or BY_DEFAULT[problem]
    ranks, seeds = arguments.ranks or DEFAULT_RANKS[problem], arguments.seeds or 10
    settings = [budget.seconds, budget.steps, budget.particles, seeds, arguments.transform]
    of_splines = [arguments.outliers, arguments.prior_scale]
    settings += of_splines if problem == "spline" else []
    path = CACHE / f"{problem}{arguments.name}.json"
    kept = stored(path, settings)
    pyro.set_rng_seed(0)
    rows = [] if arguments.alone or of_splines != [splines.OUTLIERS, 1.0] else list(peers())  # NUTS has run on these
    for name, rank in pairs(methods, ranks):
        earlier = None if arguments.afresh else kept.get((name, rank))
        found = earlier or run(name, rank, budget, seeds, arguments)
        rows.append(found | {"settings": settings})
        print({key: cell(value) for key, value in found.items() if key not in HIDDEN}, flush=True)
        others = [row for key, row in kept.items() if key not in {(each["method"], each["rank"]) for each in rows}]
        write_json(path, rows + others)
    print(table_of(rows))
    often_wrong(rows)
    return rows


if __name__ == "__main__":
    main()
