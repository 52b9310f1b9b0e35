"""One run of OHMC on a posterior: what it cost, and what its draws are worth."""

import warnings

import pyro

from benchmarks.estimates import summary
from benchmarks.timing import stopwatch
from pyro_manifold.density import BatchedPotential
from pyro_manifold.infer import MCMC, OHMC


def counted(kernel):
    """A list that grows by an entry for each gradient of all chains that `run_of` evaluates."""
    asked, prepare, call = [], kernel.run_of, BatchedPotential.__call__

    def count(potential, *arguments):
        asked.append(1)
        return call(potential, *arguments)

    def prepared(*arguments, **options):
        BatchedPotential.__call__ = count
        try:
            return prepare(*arguments, **options)
        finally:
            BatchedPotential.__call__ = call

    kernel.run_of = prepared
    return asked


def measured(posterior, chains, warmup, draws, seed=0, **options):
    """Figures of a run of `OHMC` with these options.

    ``warmup`` and ``sampling`` are gradients of each chain: leapfrog steps, and what was asked before the first one,
    for a descent and a step size to begin with. ``ess_min``, ``ess_median`` and ``rhat`` are those of `summary`, of
    the posterior's functionals.
    """
    pyro.set_rng_seed(seed)
    steps = []

    def count(iteration):
        steps.append(int(iteration.statistics["n_steps"][0]))

    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = OHMC(posterior.model, **options)
        before = counted(kernel)
        mcmc = MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True, consumers=[count])
        mcmc.run()
    values = posterior.functionals(mcmc.get_samples(group_by_chain=True))
    return {
        **summary({name: value.numpy() for name, value in values.items()}),
        "warmup": len(before) + sum(steps[:warmup]), "sampling": sum(steps[warmup:]),
        "cpu_seconds": times["cpu_seconds"], "step_size": kernel.step_size, "length": kernel.trajectory_length,
        "acceptance": float(mcmc.get_extra_fields()["acceptance_rate"].mean()),
    }  # fmt: skip
