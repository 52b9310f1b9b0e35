"""One run of OHMC on a posterior: what it cost, and what its draws are worth."""

from __future__ import annotations

import warnings

import pyro

from benchmarks.estimates import summary
from benchmarks.timing import stopwatch
from pyro_manifold.infer import MCMC, OHMC


def measured(posterior, chains, warmup, draws, seed=0, **options):
    """Figures of a run: ``gradients`` of warm-up and sampling, in steps of all chains together, and of its draws."""
    pyro.set_rng_seed(seed)
    steps = []
    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc = MCMC(
            OHMC(posterior.model, **options), draws, warmup, num_chains=chains, disable_progbar=True,
            consumers=[lambda iteration: steps.append(int(iteration.statistics["n_steps"][0]))],
        )  # fmt: skip
        mcmc.run()
        found = summary(
            {name: x.numpy() for name, x in posterior.functionals(mcmc.get_samples(group_by_chain=True)).items()}
        )
    kernel = mcmc.kernel
    return {
        "warmup": sum(steps[:warmup]), "sampling": sum(steps[warmup:]), "cpu_seconds": times["cpu_seconds"],
        "step_size": kernel.step_size, "length": kernel.trajectory_length, **found, "kernel": kernel,
        "acceptance": float(mcmc.get_extra_fields()["acceptance_rate"].mean()),
    }  # fmt: skip
