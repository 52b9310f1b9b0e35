"""Cost of the choice of trajectory length: effective draws at the length that warm-up chose with few chains, by
those at the best fixed length, for as much time.

    python -m benchmarks.speed.tuning.lengths --only Langevin --chains 1 4 --seeds 0 1
    python -m benchmarks.speed.tuning.lengths --published --curves curves.json

For each posterior, runs of many chains tune step size and masses and then draw at each of a row of mean lengths: so
much is each length worth, at the same ε, by the smallest bulk or tail effective size of the posterior's functionals and
the log density. Values are medians over the runs, since in a single one a chain can stay in a tail at any length. Then
runs of few chains only warm up, and what they choose is worth what the curve says there, by interpolation. Time is
counted in leapfrog steps, of which an iteration costs some beside its own: with few chains in native code, many. The
second share leaves these out: it counts gradients alone.
"""

import math
import warnings
from pathlib import Path

import numpy as np
import pyro
import torch

from benchmarks.estimates import effective_sizes
from benchmarks.problems.published import published
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.stored import kept
from benchmarks.study import named, option, read, switch
from benchmarks.tables import show
from pyro_manifold.infer import OHMC

LENGTHS = tuple(math.pi / 2 * 2 ** (k / 4) for k in range(-2, 13))


def prepared(posterior, chains, warmup, seed):
    """A run at the end of its warm-up, and the leapfrog steps that it took."""
    pyro.set_rng_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run, steps = OHMC(posterior.model).prepare(chains, warmup, None), 0
        run.policy.planned = 10 * warmup  # long enough for native code
        for _ in range(warmup):
            run.advance()
            steps += int(run.statistics["n_steps"][0])
    return run, steps


def drawn(run, posterior, length, draws):
    """The smallest bulk or tail effective size for a draw of a chain, and the leapfrog steps of a draw, at a length."""
    run.tuning.lengths.distribution.mean = length
    steps, kept = 0, []
    for _ in range(draws):
        run.advance()
        steps += int(run.statistics["n_steps"][0])
        kept.append({"log density": run.statistics["lp"], **{name: x.clone() for name, x in run.values.items()}})
    found = {name: torch.stack([values[name] for values in kept], 1) for name in kept[0]}
    values = {"log density": found.pop("log density").numpy()}
    values |= {name: value.numpy() for name, value in posterior.functionals(found).items()}
    sizes = *effective_sizes(values), *effective_sizes(values, method="tail")
    return min(sizes) / (draws * run.chains), steps / draws


def worths(found, fixed_cost):
    """Effective draws for a thousand gradients, ``{length: worth}``, if an iteration costs so many beside its steps.

    Effective sizes are means of three neighbours' logarithms, weighted 1, 2, 1: the largest of many noisy values would
    look better than any length is.
    """
    logs = np.log([size for size, _ in found.values()])
    padded = np.pad(logs, 1, mode="edge")
    smooth = np.exp((padded[:-2] + 2 * logs + padded[2:]) / 4)
    return {
        length: 1000 * size / (steps + fixed_cost)
        for size, (length, (_, steps)) in zip(smooth, found.items(), strict=True)
    }


def of_best(curve, length):
    """Worth of a length by the best of the curve, ``{length: worth}``."""
    x, y = np.log(list(curve)), np.log(list(curve.values()))
    return float(np.exp(np.interp(math.log(length), x, y) - y.max()))


def curve_of(posterior, chains, warmup, draws, runs):
    """``[(length, effective size for a draw, steps of a draw)]``, medians over runs."""
    tuned = [prepared(posterior, chains, warmup, seed)[0] for seed in range(runs)]
    return [
        [length, *np.median([drawn(run, posterior, length, draws) for run in tuned], 0).tolist()] for length in LENGTHS
    ]


def rows(arguments):
    """One for each posterior and number of chains."""
    for name, posterior in named((published if arguments.published else posteriors)(), arguments.only).items():
        curve = kept(arguments.curves, name, lambda posterior=posterior: curve_of(posterior, *arguments.many))
        found = {length: (size, steps) for length, size, steps in curve}
        for few in arguments.chains:
            runs = [prepared(posterior, few, arguments.warmup, seed)[0] for seed in arguments.seeds]
            fixed_cost = runs[0].tuning.lengths.choice.fixed_cost
            lengths = [each.tuning.trajectory_length for each in runs]
            shares = [[of_best(worths(found, cost), length) for length in lengths] for cost in (fixed_cost, 0)]
            cells = [" ".join(f"{number:.2f}" for number in numbers) for numbers in (lengths, *shares)]
            worth = " ".join(f"{value:.2g}" for value in worths(found, fixed_cost).values())
            yield [name, few, f"{fixed_cost:.0f}", worth, *cells]


def main(argv=None):
    arguments = read(
        __doc__, argv, only=option("", "parts of the names of posteriors, with | between them"),
        published=switch("posteriors that others have published"),
        curves=option(None, "a file that keeps what each length is worth", type=Path), chains=[1, 4, 16],
        seeds=[0, 1, 2], warmup=500, many=option((16, 500, 1000, 3), "chains, warm-up, draws a length, runs"),
    )  # fmt: skip
    print("Mean lengths of the curve:", " ".join(f"{length:.2f}" for length in LENGTHS), "\n")
    heading = ["posterior", "chains", "c", "ESS for 1,000 steps at each length", "chosen", "of the best", "a gradient"]
    made = []
    show(heading, (made.append(row) or row for row in rows(arguments)))
    for column, what in ((5, "in time"), (6, "a gradient")):
        shares = np.array([float(each) for row in made for each in row[column].split()])
        figures = f"median {np.median(shares):.2f}, smallest {shares.min():.2f}, below 0.6 {np.mean(shares < 0.6):.0%}"
        print(f"\nShare of the best, {what}: {figures}")


if __name__ == "__main__":
    main()
