"""Cost of warm-up where chains start at random, far from a concentrated posterior.

    python -m benchmarks.speed.tuning.random_starts --only weather

Prints for each model the iteration after which no chain's log density was below the range of the last draws, leapfrog
steps of warm-up and of a draw, chains that never moved, R-hat, ε, CPU seconds. The weather curves are simulated in the
shape of the daily temperatures of 35 Canadian stations, 365×1; the attributes are scikit-learn's breast cancer data.
"""

import warnings
from functools import partial

import pyro
import torch
from pyro.ops.stats import split_gelman_rubin

from benchmarks.problems.components import attributes, principal_components, weather
from benchmarks.study import Study
from benchmarks.timing import stopwatch
from problems.models import MODELS
from problems.targets import NoisyMatrix
from pyro_manifold.diagnostics import stuck_chains
from pyro_manifold.infer import MCMC, OHMC

PROBLEMS = {
    "weather curves 365×1": (lambda: partial(principal_components, weather(), 1), 4, 300, 100),
    "breast cancer 10×2": (lambda: partial(principal_components, attributes(), 2), 2, 150, 100),
    "noisy matrix": (NoisyMatrix.model, 64, 300, 100),
    "principal components": (lambda: MODELS["principal components"](0), 4, 300, 100),
    "factor analysis": (lambda: MODELS["factor analysis"](0), 4, 300, 100),
    "low-rank regression": (lambda: MODELS["low-rank regression"](0), 4, 300, 100),
    "hierarchy": (lambda: MODELS["hierarchy"](0), 4, 300, 100),
}


def measured(problem, _, seed, __):
    make, chains, warmup, draws = problem
    model = make()
    pyro.set_rng_seed(seed)
    told = []

    def tell(iteration):
        found = iteration.statistics
        told.append((found["lp"].clone(), int(found["n_steps"][0])))

    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc = MCMC(OHMC(model), draws, warmup, num_chains=chains, disable_progbar=True, consumers=[tell])
        mcmc.run()
    densities = torch.stack([density for density, _ in told])
    steps = torch.tensor([steps for _, steps in told])
    typical = densities[-(draws // 2) :]
    outside = densities < typical.amin() - typical.std(0).median()
    last = outside.nonzero()[:, 0].max() + 1 if outside.any() else 0
    stuck = stuck_chains(mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True))
    return {
        "last": int(last), "warmup": int(steps[:warmup].sum()), "steps": float(steps[warmup:].double().mean()),
        "stuck": len(stuck), "rhat": float(split_gelman_rubin(densities[warmup:].T)),
        "step_size": float(mcmc.kernel.step_size), "cpu_seconds": times["cpu_seconds"],
    }  # fmt: skip


STUDY = Study(
    __doc__, ("problem", "seed"), {
        "last arrival": ("last", ".0f"), "steps of warm-up": ("warmup", ".0f"), "steps a draw": ("steps", ".1f"),
        "stuck chains": ("stuck", ".0f"), "R-hat of the log density": ("rhat", ".3f"), "ε": ("step_size", ".3g"),
        "CPU seconds": ("cpu_seconds", ".1f"),
    },
    problems=PROBLEMS, run=measured, by_seed=True,
)  # fmt: skip
main = STUDY.main


if __name__ == "__main__":
    main()
