"""Exact MSD against long runs of NumPyro's NUTS, which is independent code: all first and second moments.

    python -m benchmarks.geometry.agreement

Standard errors are ArviZ's, on both sides; z is the difference over both together.
"""

from __future__ import annotations

import argparse
import math
import warnings
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.geometry.posteriors import small_posteriors
from benchmarks.geometry.truth import long_nuts

warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

NUTS_DRAWS = {"logistic": 25_000, "Poisson": 25_000, "banana": 125_000}
"""Of each of four chains; its draws of the banana are less effective, ten to one."""


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
    import pyro
    from pyro.infer.autoguide.initialization import init_to_uniform

    from pyro_manifold.infer import MCMC, MSD

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    options = {"metropolis": True, "num_steps": num_steps, "init_strategy": partial(init_to_uniform, radius=0.1)}
    kernel = MSD(posterior.pyro_model, step_size, 0.5, jit_compile=True, **options)
    mcmc = MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True)
    mcmc.run()
    acceptance = np.mean(list(mcmc.diagnostics()["acceptance rate"].values()))
    return mcmc.get_samples(group_by_chain=True)["w"].numpy(), float(acceptance)


def compare(ours, theirs):
    """A comparison for each moment, and the smallest effective sample size of each sampler."""
    import arviz

    found, sizes = [], []
    for (name, value), reference in zip(moments(ours).items(), moments(theirs).values(), strict=True):
        errors = [float(arviz.mcse(draws, method="mean")) for draws in (value, reference)]
        found.append(Comparison(name, float(value.mean()), errors[0], float(reference.mean()), errors[1]))
        sizes.append([float(arviz.ess(draws, method="mean")) for draws in (value, reference)])
    return found, np.min(sizes, 0)


def table(comparisons):
    lines = ["| moment | MSD | NUTS | z |", "|---|---|---|---|"]
    for each in comparisons:
        ours, theirs = f"{each.ours:.4f} ± {each.our_error:.4f}", f"{each.theirs:.4f} ± {each.their_error:.4f}"
        lines.append(f"| {each.moment} | {ours} | {theirs} | {each.z:+.1f} |")
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--msd", type=int, nargs=2, default=[512, 200], help="chains and draws of each")
    parser.add_argument("--nuts", type=int, help="draws of each of four chains, in place of each posterior's number")
    parser.add_argument("--only", default="", help="part of the names of posteriors")
    arguments = parser.parse_args(argv)
    zs = []
    for posterior in small_posteriors():
        if arguments.only not in posterior.name:
            continue
        chains, draws = arguments.msd
        ours, acceptance = exact_msd(posterior, chains, draws=draws)
        theirs = long_nuts(posterior, draws=arguments.nuts or NUTS_DRAWS[posterior.name])
        comparisons, sizes = compare(ours, theirs)
        zs += [each.z for each in comparisons]
        print(f"\n### {posterior.name}\n\n{table(comparisons)}\n")
        print(f"Smallest effective sample sizes {sizes[0]:.0f} and {sizes[1]:.0f}; MSD accepts {acceptance:.2f}.")
        print(f"Largest |z| {max(abs(each.z) for each in comparisons):.1f}.", flush=True)
    print(f"\n{len(zs)} moments, largest |z| {max(map(abs, zs)):.1f}, mean of z² {np.mean(np.square(zs)):.2f}.")


if __name__ == "__main__":
    main()
