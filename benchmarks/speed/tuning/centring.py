"""Sites of location-scale families as a model is written, not centred by hand, and in coordinates that warm-up chooses.

    python -m benchmarks.speed.tuning.centring
    python -m benchmarks.speed.tuning.centring --only "schools|seeds|funnel" --seeds 0 1 2

Published posteriors, correlated ones and those of `posteriors` that have a site whose location or scale depends on
another. Effective sizes are the smallest
bulk or tail size of the functionals of a posterior and its log density, of all draws.
"""

import time
import warnings
from functools import partial

import pyro
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam

from benchmarks.estimates import effective_sizes, summary
from benchmarks.problems.correlated import correlated
from benchmarks.problems.published import published
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.study import Study, largest, option, spread
from pyro_manifold.density import Program, centred
from pyro_manifold.infer import MCMC, OHMC


def sites_of(posterior):
    """Names of the sites that can be centred; none for a model of another kind."""
    pyro.set_rng_seed(0)
    found = centred(Program(posterior.model).target)
    return [] if found is None else list(found.shapes)


def problems(arguments):
    found = published() | correlated() | posteriors()
    return {name: posterior for name, posterior in found.items() if sites_of(posterior)}


def methods(arguments, posterior):
    by_hand = poutine.reparam(posterior.model, {name: LocScaleReparam(0.0) for name in sites_of(posterior)})
    return {
        "as written": (posterior.model, partial(OHMC, adapt_centring=False)),
        "not centred, by hand": (by_hand, partial(OHMC, adapt_centring=False)),
        "chosen": (posterior.model, OHMC),
    }


def run(posterior, method, seed, arguments):
    (model, kernel), (chains, warmup, draws) = method, arguments.sizes
    pyro.set_rng_seed(seed)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc = MCMC(kernel(model), draws, warmup, num_chains=chains, disable_progbar=True)
        mcmc.run()
        seconds = time.process_time() - begun
        extra = mcmc.get_extra_fields(group_by_chain=True)
        sites = mcmc.get_samples(group_by_chain=True, deterministic=True)
        values = posterior.functionals(sites) | {"log density": extra["lp"]}
    values = {name: value.numpy() for name, value in values.items()}
    return {
        "ess": min(*effective_sizes(values), *effective_sizes(values, method="tail")),
        "rhat": summary(values)["rhat"],
        "steps": float(extra["n_steps"].double().mean()),
        "seconds": seconds,
        "centredness": " ".join(f"{name} {float(c.mean()):.1f}" for name, c in mcmc.kernel.centredness.items()),
    }


STUDY = Study(
    text=__doc__,
    heads=("posterior", "form"),
    columns={
        "ESS": spread("ess", ".0f"),
        "R-hat": largest("rhat", ".3f"),
        "steps": ("steps", ".1f"),
        "CPU s": ("seconds", ".1f"),
        "chosen c": lambda runs: "; ".join(dict.fromkeys(run["centredness"] for run in runs if run["centredness"])),
    },
    problems=problems,
    methods=methods,
    run=run,
    seeds=(0, 1, 2),
    options={"sizes": option((4, 500, 500), "chains, warm-up, draws")},
)

main = STUDY.main

if __name__ == "__main__":
    main()
