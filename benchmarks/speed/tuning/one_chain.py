"""Effective draws of one chain, and of each of four, with as many iterations.

    python -m benchmarks.speed.tuning.one_chain
    python -m benchmarks.speed.tuning.one_chain --only "inputs|pumps" --seeds 0 1 2 3

Effective sizes are the smallest bulk size of the functionals of a posterior, and that of its log density, per chain.
Those of four chains are estimated for each chain by itself, and averaged: an estimate by one chain sees less than one
by four. A single run tells little, since such estimates vary by factors; ratios are those of means over all seeds.
"""

import math
import statistics
import warnings

import pyro

from benchmarks.estimates import effective_sizes
from benchmarks.problems.published import published
from benchmarks.problems.sparse_inputs import PROBLEMS
from benchmarks.study import Study, option, spread, switch
from benchmarks.timing import stopwatch
from pyro_manifold.infer import MCMC, OHMC

TEN = (
    "eight schools, non-centred", "rats", "pumps", "dugongs", "robust regression of diabetes",
    "logistic regression of breast cancer", "Gaussian process", "GARCH(1,1)", "components of wine",
    "latent AR(1) of counts",
)  # fmt: skip


def problems(arguments):
    found = published()
    own = {name: problem.posterior for name, problem in PROBLEMS.items()}
    return own | (found if arguments.all else {name: found[name] for name in TEN})


def sampled(posterior, chains, seed, arguments):
    """Return effective sizes of a chain, of its functionals and of its log density, CPU seconds and steps."""
    warmup, draws = arguments.sizes
    pyro.set_rng_seed(seed)
    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc = MCMC(OHMC(posterior.model), draws, warmup, num_chains=chains, disable_progbar=True)
        mcmc.run()
    extra = mcmc.get_extra_fields(group_by_chain=True)
    values = posterior.functionals(mcmc.get_samples(group_by_chain=True, deterministic=True))
    sizes = [
        min(effective_sizes({name: x[chain, None].numpy() for name, x in each.items()}))
        for each in (values, {"log density": extra["lp"]})
        for chain in range(chains)
    ]
    return {
        "ess": statistics.fmean(sizes[:chains]),
        "density": statistics.fmean(sizes[chains:]),
        "seconds": times["cpu_seconds"],
        "steps": float(extra["n_steps"].double().mean()),
    }


def run(posterior, method, seed, arguments):
    one, four = (sampled(posterior, chains, seed, arguments) for chains in (1, 4))
    return {**one, **{f"{name} of four": value for name, value in four.items()}}


def ratio(*names):
    """Cell with the ratio of means over runs of one chain to those of four, of the first figure by the second."""

    def cell(runs):
        means = {
            (name, chains): statistics.fmean(run[name + chains] for run in runs)
            for name in names for chains in ("", " of four")
        }  # fmt: skip
        first, *others = (means[name, ""] / means[name, " of four"] for name in names)
        return f"{first / math.prod(others):.2f}"

    return cell


STUDY = Study(
    text=__doc__,
    heads=("posterior",),
    columns={
        "ESS of one": spread("ess", ".0f"),
        "ratio": ratio("ess"),
        "for each step": ratio("ess", "steps"),
        "of the log density": ratio("density"),
        "steps": ("steps", ".1f"),
        "steps of four": ("steps of four", ".1f"),
        "CPU s": ("seconds", ".1f"),
        "CPU s of four": ("seconds of four", ".1f"),
    },
    problems=problems,
    run=run,
    seeds=(0, 1, 2, 3, 4),
    options={"sizes": option((500, 1000), "warm-up and draws"), "all": switch("all published posteriors")},
)

main = STUDY.main

if __name__ == "__main__":
    main()
