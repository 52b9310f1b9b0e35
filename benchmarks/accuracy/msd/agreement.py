"""Exact MSD against long runs of NumPyro's NUTS, which is independent code: all first and second moments.

    python -m benchmarks.accuracy.msd.agreement

Standard errors are ArviZ's, on both sides; z is the difference over both together.
"""

import math
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from pyro.infer.autoguide.initialization import init_to_uniform

from benchmarks.estimates import effective_sizes, mean_and_error
from benchmarks.peers import pyro_manifold
from benchmarks.problems.coefficient_moments import long_nuts
from benchmarks.problems.coefficients import small_posteriors
from benchmarks.study import option, read
from benchmarks.tables import table

NUTS_DRAWS = {"logistic": 25_000, "Poisson": 25_000, "banana": 125_000}
"""Draws of each of four chains; those of the banana are less effective, ten to one."""


class Comparison(NamedTuple):
    """One moment by both samplers, each with its standard error."""

    moment: str
    ours: float
    our_error: float
    theirs: float
    their_error: float

    @property
    def z(self):
        return (self.ours - self.theirs) / math.hypot(self.our_error, self.their_error)


def moments(w):
    """``{name: (chains, draws)}`` of all first and second moments of ``(chains, draws, dimension)``."""
    indices = range(w.shape[-1])
    first = {f"w{i}": w[..., i] for i in indices}
    return first | {f"w{i} w{j}": w[..., i] * w[..., j] for i, j in combinations_with_replacement(indices, 2)}


def exact_msd(posterior, chains=512, warmup=50, draws=200, step_size=0.5, num_steps=3):
    """Draws ``(chains, draws, dimension)`` of MSD with the Metropolis decision, and the mean acceptance.

    Chains start within 0.1 of the prior's mean: from Pyro's uniform starts in (-2, 2), where rates of the Poisson model
    reach e¹⁰, so short a warm-up might not forget the start.
    """
    options = {"metropolis": True, "step_size": step_size, "num_steps": num_steps, "persistence": 0.5}
    options |= {"adapt_step_size": False, "init_strategy": partial(init_to_uniform, radius=0.1), "jit_compile": True}
    run = pyro_manifold(posterior, chains=chains, warmup=warmup, draws=draws, kernel="MSD", **options)
    return run.draws["w"], float(np.mean(run.figures["acceptance"]))


def compare(ours, theirs):
    """A comparison for each moment, and the smallest effective sample size of each sampler."""
    found, sizes = [], []
    for (name, value), reference in zip(moments(ours).items(), moments(theirs).values(), strict=True):
        found.append(Comparison(name, *mean_and_error(value), *mean_and_error(reference)))
        sizes.append(effective_sizes({"ours": value, "theirs": reference}, "mean"))
    return found, np.min(sizes, 0)


def row(comparison):
    ours = f"{comparison.ours:.4f} ± {comparison.our_error:.4f}"
    theirs = f"{comparison.theirs:.4f} ± {comparison.their_error:.4f}"
    return [comparison.moment, ours, theirs, f"{comparison.z:+.1f}"]


def main(argv=None):
    nuts = option(None, "draws of each of four chains, in place of each posterior's number", type=int)
    only = option("", "part of the names of posteriors")
    arguments = read(__doc__, argv, msd=option((512, 200), "chains and draws of each"), nuts=nuts, only=only)
    zs = []
    for posterior in small_posteriors():
        if arguments.only not in posterior.name:
            continue
        chains, draws = arguments.msd
        ours, acceptance = exact_msd(posterior, chains, draws=draws)
        theirs = long_nuts(posterior, draws=arguments.nuts or NUTS_DRAWS[posterior.name])
        comparisons, sizes = compare(ours, theirs)
        zs += [each.z for each in comparisons]
        print(f"\n### {posterior.name}\n\n{table(('moment', 'MSD', 'NUTS', 'z'), map(row, comparisons))}\n")
        print(f"Smallest effective sample sizes {sizes[0]:.0f} and {sizes[1]:.0f}; MSD accepts {acceptance:.2f}.")
        print(f"Largest |z| {max(abs(each.z) for each in comparisons):.1f}.", flush=True)
    print(f"\n{len(zs)} moments, largest |z| {max(map(abs, zs)):.1f}, mean of z² {np.mean(np.square(zs)):.2f}.")


if __name__ == "__main__":
    main()
