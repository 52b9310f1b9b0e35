"""What the choice of trajectory length costs: effective draws at the length that warm-up chose with few chains, by
those at the best fixed length, for as much time.

    python -m benchmarks.speed.tuning.lengths --only Langevin --chains 1 4 --seeds 0 1

For each posterior, one run of many chains tunes step size and masses and then draws at each of a row of mean lengths:
so much is each length worth, at the same ε, by the smallest effective size of the posterior's functionals and the log
density. Then runs of few chains only warm up, and what they choose is worth what
the curve says there, by interpolation. Time is counted in leapfrog steps, of which an iteration costs some beside its
own: with few chains in native code, many.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
import pyro
import torch

from benchmarks.estimates import effective_sizes
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.tables import show
from pyro_manifold.infer import OHMC

LENGTHS = tuple(math.pi / 2 * 2 ** (k / 4) for k in range(-2, 13))


def prepared(posterior, chains, warmup, seed):
    """A run at the end of its warm-up, and the leapfrog steps that it took."""
    pyro.set_rng_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run, steps = OHMC(posterior.model).prepare(chains, warmup, None), 0
        run.compilation.planned = 10 * warmup  # long enough for native code
        for _ in range(warmup):
            run.advance()
            steps += int(run.statistics["n_steps"][0])
    return run, steps


def drawn(run, posterior, length, draws):
    """The smallest effective size for a draw of a chain, and the leapfrog steps of a draw, at a mean length."""
    run.tuning._lengths.mean = length
    steps, kept = 0, []
    for _ in range(draws):
        run.advance()
        steps += int(run.statistics["n_steps"][0])
        kept.append({"log density": run.statistics["lp"], **{name: x.clone() for name, x in run.values.items()}})
    found = {name: torch.stack([values[name] for values in kept], 1) for name in kept[0]}
    values = {"log density": found.pop("log density").numpy()}
    values |= {name: value.numpy() for name, value in posterior.functionals(found).items()}
    return min(effective_sizes(values)) / (draws * run.chains), steps / draws


def worths(found, fixed_cost):
    """Effective draws for a thousand gradients, ``{length: worth}``, if an iteration costs so many beside its steps."""
    return {length: 1000 * size / (steps + fixed_cost) for length, (size, steps) in found.items()}


def of_best(curve, length):
    """What a length is worth by the best of the curve, ``{length: worth}``."""
    x, y = np.log(list(curve)), np.log(list(curve.values()))
    return float(np.exp(np.interp(math.log(length), x, y) - y.max()))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="parts of the names of posteriors, with | between them")
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--many", type=int, nargs=3, default=[16, 500, 250], help="chains, warm-up, draws a length")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    chains, warmup, draws = arguments.many

    def rows():
        for name, posterior in posteriors().items():
            if not any(part in name for part in arguments.only.split("|")):
                continue
            run, _ = prepared(posterior, chains, warmup, 0)
            found = {length: drawn(run, posterior, length, draws) for length in LENGTHS}
            for few in arguments.chains:
                runs = [prepared(posterior, few, arguments.warmup, seed)[0] for seed in arguments.seeds]
                fixed_cost = runs[0].tuning.length_choice.fixed_cost
                curve = worths(found, fixed_cost)
                lengths = [each.tuning.trajectory_length for each in runs]
                shares = [of_best(curve, length) for length in lengths]
                told = [" ".join(f"{number:.2f}" for number in numbers) for numbers in (lengths, shares)]
                yield [name, few, f"{fixed_cost:.0f}", " ".join(f"{value:.2g}" for value in curve.values()), *told]

    print("Mean lengths of the curve:", " ".join(f"{length:.2f}" for length in LENGTHS), "\n")
    show(["posterior", "chains", "c", "ESS for 1,000 steps at each length", "chosen", "of the best"], rows())


if __name__ == "__main__":
    main()
