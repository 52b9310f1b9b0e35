"""Ratings of films by a matrix of rank 10: two plain factors, the form U diag(s) Vᵀ, and an ensemble of its draws.

    python -m benchmarks.papers.ohmc.ratings --data u.data [--seeds 3] [--device cuda]

MovieLens-100k: a line has a user, an item, a rating from 1 to 5 and a time; the model is of ratings minus 3, without
means of users and items, and their noise has standard deviation 1, so that descent minimises squares. A random tenth of
the ratings is held out, another one for each seed; the root mean square of errors there is the figure. Predictions are
not cut to the range of ratings.

"Bottleneck" is PQᵀ with normal entries, "SVD" U diag(s) Vᵀ with U and V uniform on the matrices with orthonormal
columns and s normal (the signs of its entries are those of columns of U). Priors are such that in both an entry of the
matrix has mean 0 and variance 1. Both are found by descent (temperature 0, a falling step), which begins near 0. The
ensembles begin where descent ends; their prediction is the mean over the draws of one chain, by OSGHMC for SVD and by
SGHMC for the bottleneck. Errors "while learning" are those on the ratings that descent was given.

The paper (Yanush & Kropotov, arXiv 1901.08045) has errors of 1.017 (bottleneck), 1.013 (SVD) and 1.001 (ensemble). Its
split, priors and noise are not known to us.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample, init_to_value

from benchmarks.tables import show
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC, RunningPredictions

RANK, MIDDLE, BATCHES = 10, 3.0, 20
NEAR = 0.1  # of their prior's standard deviation, where scales begin


def read(path, device="cpu"):
    """Users, items (from 0) and ratings minus 3 of a file of MovieLens-100k.

    Raises:
        FileNotFoundError: if there is none; the sentence says what is expected.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is missing: give the file u.data of MovieLens-100k as --data.")
    users, items, ratings, _ = np.loadtxt(path, dtype=np.int64, delimiter="\t").T
    return (
        torch.as_tensor(users - 1, device=device),
        torch.as_tensor(items - 1, device=device),
        torch.as_tensor(ratings, dtype=torch.float32, device=device) - MIDDLE,
    )


def generated(users=60, items=80, rank=2, seed=0):
    """Ratings of about half of the pairs, in the same form, to see that code runs."""
    random = torch.Generator().manual_seed(seed)
    factors = [torch.randn(size, rank, generator=random) / rank**0.25 for size in (users, items)]
    pairs = (torch.rand(users, items, generator=random) < 0.5).nonzero().T
    exact = (factors[0] @ factors[1].T)[pairs[0], pairs[1]]
    return pairs[0], pairs[1], exact + 0.5 * torch.randn(len(exact), generator=random)


def split(ratings, seed):
    """Nine tenths to learn from, one tenth held out."""
    count = len(ratings[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(ratings[0].device)
    held_out = count // 10
    return [part[order[held_out:]] for part in ratings], [part[order[:held_out]] for part in ratings]


def normal(name, *shape, like):
    return pyro.sample(name, dist.Normal(like.new_zeros(()), like.new_ones(())).expand(shape).to_event(len(shape)))


class Bottleneck:
    """PQᵀ, called with users and items; its sites are standard normal."""

    kernel = SGHMC

    def __init__(self, users, items, rank, like, faster):
        self._shapes, self._like = {"P": (users, rank), "Q": (items, rank)}, like
        self.step_size, self.draw_step_size = 0.02 * faster, 0.01 * faster
        self._scale = rank**-0.5
        self.start = {name: NEAR * torch.randn(shape).to(like) for name, shape in self._shapes.items()}

    def __call__(self, users, items):
        P, Q = (normal(name, *shape, like=self._like) for name, shape in self._shapes.items())
        return self._scale * (P[users] * Q[items]).sum(-1)


class SVD:
    """U diag(s) Vᵀ, called with users and items; the site "s" is standard normal, in units of its scale."""

    kernel = OSGHMC

    def __init__(self, users, items, rank, like, faster):
        self._frames, self._like = {"U": (users, rank), "V": (items, rank)}, like
        self.step_size, self.draw_step_size = 2e-3 * faster, 5e-4 * faster
        self._scale, self._rank = math.sqrt(users * items / rank), rank
        self.start = {"s": like.new_full((rank,), NEAR)}

    def __call__(self, users, items):
        place = {"dtype": self._like.dtype, "device": self._like.device}
        U, V = (pyro.sample(name, StiefelUniform(*shape, **place)) for name, shape in self._frames.items())
        s = self._scale * normal("s", self._rank, like=self._like)
        return (U[users] * s * V[items]).sum(-1)


def posterior(matrix, users, items, ratings):
    """The model: a part of the ratings at each run."""

    def model():
        plate = pyro.plate("ratings", len(ratings), subsample_size=len(ratings) // BATCHES)
        with plate as rows:
            batch = users[rows], items[rows], ratings[rows]
        mean = matrix(*batch[:2])  # outside of the plate, for factors belong to all ratings
        with plate:
            pyro.sample("rating", dist.Normal(mean, mean.new_ones(())), obs=batch[2])

    return model


def error(predicted, ratings):
    return float((predicted - ratings).square().mean().sqrt())


def descent(matrix, train, epochs, friction):
    """The sites at the end."""
    steps = epochs * BATCHES

    def size(step):
        return matrix.step_size * max(0.02, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))

    kernel = matrix.kernel(
        posterior(matrix, *train), step_size=size, friction=friction, num_steps=BATCHES, temperature=0.0,
        init_strategy=init_to_value(values=matrix.start, fallback=init_to_sample),
    )  # fmt: skip
    MCMC(kernel, 1, epochs - 1, save_params=[], disable_progbar=True).run()
    return {name: value[0] for name, value in kernel.run.sites.items()}  # of the only chain


def predictions(matrix, sites, test):
    with torch.no_grad():
        return pyro.poutine.condition(matrix, sites)(*test[:2])


def ensemble(matrix, start, train, test, draws, friction):
    """The mean of the predictions of draws."""
    found = RunningPredictions(matrix, *test[:2])
    kernel = matrix.kernel(
        posterior(matrix, *train), step_size=matrix.draw_step_size, friction=friction, num_steps=2 * BATCHES
    )
    options = {"initial_params": start, "save_params": [], "consumers": [found], "disable_progbar": True}
    MCMC(kernel, draws, draws // 4, **options).run()
    return found.mean


def run(ratings, seed, *, epochs=60, draws=100, friction=0.1, rank=RANK, faster=1.0):
    """``{row: (error, error while learning or None, seconds)}``; steps ``faster`` times as long."""
    pyro.set_rng_seed(seed)
    train, test = split(ratings, seed)
    sizes = [int(part.max()) + 1 for part in ratings[:2]]
    found = {}
    for name, form in {"bottleneck": Bottleneck, "SVD": SVD}.items():
        matrix = form(*sizes, rank, ratings[2], faster)
        started = time.perf_counter()
        sites = descent(matrix, train, epochs, friction)
        errors = [error(predictions(matrix, sites, part), part[2]) for part in (test, train)]
        found[f"{name}, descent"] = *errors, time.perf_counter() - started
        started = time.perf_counter()
        mean = ensemble(matrix, sites, train, test, draws, friction)
        found[f"{name}, ensemble"] = error(mean, test[2]), None, time.perf_counter() - started
    return found


def rows(results):
    """Of ``[{row: (error, error while learning, seconds)}]``, one for each seed."""
    for name in results[0]:
        errors, learning, seconds = zip(*(result[name] for result in results), strict=True)
        yield [
            name,
            *(f"{x:.4f}" for x in errors),
            f"{statistics.mean(errors):.4f}",
            "" if None in learning else f"{statistics.mean(learning):.4f}",
            f"{statistics.mean(seconds):.0f}",
        ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the file u.data of MovieLens-100k")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60, help="of descent")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="few generated ratings")
    arguments = parser.parse_args(argv)
    options = {"epochs": arguments.epochs, "draws": arguments.draws}
    if arguments.short:
        ratings = [part.to(arguments.device) for part in generated()]
        options = {"epochs": 60, "draws": 10, "rank": 2, "faster": 2.0}
    elif arguments.data is None:
        parser.error("--data is needed: the file u.data of MovieLens-100k (or --short).")
    else:
        ratings = read(arguments.data, arguments.device)
    seeds = range(arguments.seeds)
    results = [run(ratings, seed, **options) for seed in seeds]
    columns = ["", *(f"seed {seed}" for seed in seeds), "mean", "mean while learning", "seconds"]
    print(f"## Root mean square errors of {len(ratings[2]) // 10:,} ratings held out\n")
    show(columns, rows(results))


if __name__ == "__main__":
    main()
