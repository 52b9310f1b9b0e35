"""Iterations of warm-up that four chains need, from random starts, and from draws and scales of Pathfinder.

    python -m benchmarks.speed.tuning.first_look
    python -m benchmarks.speed.tuning.first_look --only "schools|wine" --seeds 0 1 2

Of a row of lengths of warm-up, the shortest after which all functionals of a posterior and its log density have an
R-hat of at most 1.01; ∞ if there is none. Warm-up from Pathfinder begins at its draws, with the variances of its
draws in unconstrained space as inverse masses.
"""

import math
import warnings

import pyro
import torch

from benchmarks.estimates import summary
from benchmarks.problems.published import published
from benchmarks.study import Study, option, spread
from pyro_manifold.density import Program
from pyro_manifold.infer import MCMC, OHMC, Tuning, init_to_draws, pathfinder


def problems(arguments):
    return published()


def methods(arguments, posterior):
    return {"random starts": as_usual, "Pathfinder's draws": from_draws, "its draws and scales": from_draws_and_scales}


def as_usual(model):
    return OHMC(model)


def from_draws(model):
    return OHMC(model, init_strategy=init_to_draws(pathfinder(model).get_samples()))


def from_draws_and_scales(model):
    draws, target = pathfinder(model).get_samples(), Program(model).target
    moved = {name: x for name, x in target.positions(draws).items() if name not in target.manifolds}
    positions = {name: x.reshape(len(x), -1) for name, x in moved.items()}
    block = tuple(sorted(positions))
    variances = torch.cat([positions[name].var(0) for name in block]) if block else None
    # Draws that are all alike have no variance.
    masses = {} if variances is None else {block: torch.where(variances > 0, variances, 1.0)}
    return OHMC(model, init_strategy=init_to_draws(draws), tuning=Tuning(0.1, masses))


def converged(posterior, kernel, warmup, arguments):
    mcmc = MCMC(kernel, arguments.draws, warmup, num_chains=4, disable_progbar=True)
    mcmc.run()
    extra = mcmc.get_extra_fields(group_by_chain=True)
    values = posterior.functionals(mcmc.get_samples(group_by_chain=True, deterministic=True)) | {"lp": extra["lp"]}
    return summary({name: value.numpy() for name, value in values.items()})["rhat"] <= 1.01


def run(posterior, method, seed, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for warmup in sorted(arguments.lengths):
            pyro.set_rng_seed(seed)
            if converged(posterior, method(posterior.model), warmup, arguments):
                return {"warmup": float(warmup)}
    return {"warmup": math.inf}


STUDY = Study(
    text=__doc__,
    heads=("posterior", "warm-up from"),
    columns={"iterations": spread("warmup", ".0f")},
    problems=problems,
    methods=methods,
    run=run,
    seeds=(0, 1, 2),
    options={
        "draws": option(1000, "draws of each chain"),
        "lengths": option([50, 100, 150, 200, 300, 500], "lengths of warm-up"),
    },
)

main = STUDY.main

if __name__ == "__main__":
    main()
