"""Table 6 of the OHMC paper: ratings of films by a matrix of rank 10, as two factors and as U diag(σ) Vᵀ.

    python -m benchmarks.papers.ohmc.ratings --data u.data [--seeds 5] [--rank 10] [--device cuda] [--small]

MovieLens-100k: a line has a user, an item, a rating from 1 to 5 and a time. As in the paper (Yanush & Kropotov, arXiv
1901.08045): rank 10, ratings minus 3 without means of users and items, 20 epochs of descent, then 1,000 steps of
burn-in and 5,000 of sampling with ε = 1e-4, of which every 500th is a member of the ensemble, five runs. (Its text
takes the burn-in from the 5,000, which leaves 8 members, and has 10.)

The paper leaves open the split, priors, noise, batches and the steps of the descent. Here a random tenth of the ratings
is held out, another one for each run; a step has a twentieth of the others; the noise has standard deviation 1, so that
descent minimises squares; and momenta lose 0.1 of themselves in a step. Predictions are not cut to the range of
ratings. "Bottleneck" is PQᵀ with normal entries, "SVD" U diag(s) Vᵀ with U and V uniform on the matrices with
orthonormal columns and s normal (order and signs of its entries are those of columns of U). Priors are such that in
both an entry of the matrix has mean 0 and variance 1. "No prior" is the bottleneck by squares alone. All are found by
descent (temperature 0, a falling step), which begins near 0. Ensembles begin where descent ends: OSGHMC for SVD, SGHMC
for the bottleneck, of which the paper has none.

Two more tables have errors after descent by the number of ratings of a film that descent was given, and the singular
values of the matrix that descent found, in descending order.
"""

import itertools
import math
import statistics
import time
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample, init_to_value

from benchmarks.arguments import count, positive, without_effect
from benchmarks.predictions import Predictions
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show, with_deviation
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC

RANK, MIDDLE, BATCHES = 10, 3.0, 20
EPOCHS, BURN_IN, MEMBERS, STEPS_A_MEMBER, DRAW_STEP = 20, 1000, 10, 500, 1e-4
COUNTS = (0, 10, 50, 10_000)
"""Bounds of the numbers of ratings of a film in the last table."""
PAPER = {
    "bottleneck, descent": "1.017 ± 0.003",
    "bottleneck, no prior, descent": "1.017 ± 0.003",
    "SVD, descent": "1.013 ± 0.003",
    "SVD, ensemble": "1.001 ± 0.002",
}
NEAR = 0.1  # of their prior's standard deviation, where scales begin


def read(path, device="cpu"):
    """Users, items (from 0) and ratings minus 3 of a file of MovieLens-100k.

    Raises:
        SystemExit: if there is none, or another file; the sentence says what is expected.
    """
    if not Path(path).is_file():
        raise SystemExit(f"{path} is missing: give the file u.data of MovieLens-100k as --data.")
    try:
        users, items, ratings, _ = np.loadtxt(path, dtype=np.int64, delimiter="\t").T
    except ValueError as error:
        raise SystemExit(f"{path} is no file u.data of MovieLens-100k ({error}): give that one as --data.") from error
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

    kernel, has_prior = SGHMC, True

    def __init__(self, users, items, rank, like, faster):
        self._shapes, self._like = {"P": (users, rank), "Q": (items, rank)}, like
        self.step_size = 0.02 * faster
        self._scale = rank**-0.5
        self.start = {name: NEAR * torch.randn(shape).to(like) for name, shape in self._shapes.items()}

    def __call__(self, users, items):
        with pyro.poutine.mask(mask=self.has_prior):
            P, Q = (normal(name, *shape, like=self._like) for name, shape in self._shapes.items())
        return self._scale * (P[users] * Q[items]).sum(-1)

    def spectrum(self, sites):
        """Singular values of the matrix, those of the product of the triangular factors of P and Q."""
        P, Q = (torch.linalg.qr(sites[name].double()).R for name in ("P", "Q"))
        return self._scale * torch.linalg.svdvals(P @ Q.mT)


class Free(Bottleneck):
    """The same without a prior: its descent minimises squares alone."""

    has_prior = False


class SVD:
    """U diag(s) Vᵀ, called with users and items; the site "s" is standard normal, in units of its scale."""

    kernel = OSGHMC

    def __init__(self, users, items, rank, like, faster):
        self._frames, self._like = {"U": (users, rank), "V": (items, rank)}, like
        self.step_size = 2e-3 * faster
        self._scale, self._rank = math.sqrt(users * items / rank), rank
        self.start = {"s": like.new_full((rank,), NEAR)}

    def __call__(self, users, items):
        place = {"dtype": self._like.dtype, "device": self._like.device}
        U, V = (pyro.sample(name, StiefelUniform(*shape, **place)) for name, shape in self._frames.items())
        s = self._scale * normal("s", self._rank, like=self._like)
        return (U[users] * s * V[items]).sum(-1)

    def spectrum(self, sites):
        """Singular values of the matrix."""
        return self._scale * sites["s"].abs().sort(descending=True).values


FORMS = {"bottleneck": Bottleneck, "bottleneck, no prior": Free, "SVD": SVD}


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


def ensemble(matrix, start, train, test, friction, *, members, steps, burn_in, step_size):
    """The mean of the predictions of draws."""
    found = Predictions(matrix, *test[:2])
    kernel = matrix.kernel(posterior(matrix, *train), step_size=step_size, friction=friction, num_steps=steps)
    options = {"initial_params": start, "save_params": [], "consumers": [found], "disable_progbar": True}
    MCMC(kernel, members, burn_in // steps, **options).run()
    return found.mean


def by_count(predicted, train, test):
    """Root mean square errors by the number of ratings of a film in training, one for each pair of `COUNTS`."""
    ratings = torch.bincount(train[1], minlength=int(test[1].max()) + 1)[test[1]]
    pairs = itertools.pairwise(COUNTS)
    chosen = ((ratings >= low) & (ratings < high) for low, high in pairs)
    return [error(predicted[rows], test[2][rows]) for rows in chosen]


def run(ratings, seed, *, epochs=EPOCHS, friction=0.1, rank=RANK, faster=1.0, **sampling):
    """``{row: (error, error while learning, errors by count, singular values, seconds)}``.

    Steps are ``faster`` times as long. The second to fourth are None for an ensemble.
    """
    pyro.set_rng_seed(seed)
    train, test = split(ratings, seed)
    sizes = [int(part.max()) + 1 for part in ratings[:2]]
    found = {}
    for name, form in FORMS.items():
        matrix = form(*sizes, rank, ratings[2], faster)
        started = time.process_time()
        sites = descent(matrix, train, epochs, friction)
        predicted, fitted = (predictions(matrix, sites, part) for part in (test, train))
        counts, spectrum = by_count(predicted, train, test), matrix.spectrum(sites).tolist()
        seconds = time.process_time() - started
        found[f"{name}, descent"] = error(predicted, test[2]), error(fitted, train[2]), counts, spectrum, seconds
        if form is Free:
            continue
        started = time.process_time()
        mean = ensemble(matrix, sites, train, test, friction, **sampling)
        found[f"{name}, ensemble"] = error(mean, test[2]), None, None, None, time.process_time() - started
    return found


def rows(results):
    """Yield a row for each method, from ``[{method: figures}]``, one for each run."""
    for name in results[0]:
        errors, learning, *_, seconds = zip(*(result[name] for result in results), strict=True)
        fitted = "" if None in learning else with_deviation(learning, 3)
        yield [name, with_deviation(errors, 3), PAPER.get(name, "–"), fitted, f"{statistics.mean(seconds):.0f}"]


def rows_by_count(results):
    for name in results[0]:
        counts = [result[name][2] for result in results]
        if None not in counts:
            yield [name, *(with_deviation(each, 3) for each in zip(*counts, strict=True))]


def rows_of_spectra(results):
    for name in results[0]:
        spectra = [result[name][3] for result in results]
        if None not in spectra:
            yield [name, ", ".join(f"{value:.0f}" for value in np.mean(spectra, 0))]


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "the file u.data of MovieLens-100k"), seeds=option(5, type=count),
        epochs=option(EPOCHS, "of descent", type=count), rank=option(RANK, type=count),
        members=option(MEMBERS, "of the ensemble", type=count), draw_step_size=option(DRAW_STEP, type=positive),
        device="cpu", small=switch("few generated ratings"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    options = {"epochs": arguments.epochs, "members": arguments.members, "steps": STEPS_A_MEMBER}
    options |= {"burn_in": BURN_IN, "step_size": arguments.draw_step_size, "rank": arguments.rank}
    seeds = range(arguments.seeds)
    if arguments.small:
        names = ("seeds", "epochs", "rank", "members", "draw_step_size")
        without_effect(parser, arguments, names, "with --small")
        ratings, seeds = [part.to(arguments.device) for part in generated()], range(2)
        options |= {"epochs": 60, "members": 10, "rank": 2, "faster": 2.0}
        options |= {"steps": 40, "burn_in": 80, "step_size": 1e-3}
    elif arguments.data is None:
        parser.error("--data is needed: the file u.data of MovieLens-100k (or --small).")
    else:
        ratings = read(arguments.data, arguments.device)
    results = [run(ratings, seed, **options) for seed in seeds]
    print(f"## Root mean square errors of {len(ratings[2]) // 10:,} ratings held out, {len(seeds)} runs\n")
    show(["", "error", "paper", "error while learning", "CPU s a run"], rows(results))
    print()
    show(["errors by ratings of a film", "below 10", "10 to 49", "50 and more"], rows_by_count(results))
    print()
    show(["after descent", "singular values, means"], rows_of_spectra(results))


if __name__ == "__main__":
    main()
