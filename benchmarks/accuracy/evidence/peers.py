"""The same evidences by `SMC`, by PyMC's and by BlackJAX's sequential Monte Carlo, at equal numbers of particles.

Each way is a process of its own with one thread, makes ten runs from ten seeds, and its processor time is all of it:
building the model, tracing, compiling and running, but not importing packages.
"""

import json
import logging
import math
import os
import sys
import warnings
from types import SimpleNamespace

import numpy as np

from benchmarks.accuracy.evidence.problems import PROBLEMS
from benchmarks.machine import confine
from benchmarks.measure import run_apart
from benchmarks.tables import formatted, show
from benchmarks.timing import stopwatch

TABLE = ("problem", "way", "root mean square error", "bias", "s a run")
HEADER = "Errors are of the log evidence of single runs with {particles} particles, over {runs} of them.\n"
_LIMIT = 500


def ours(problem, particles, runs, times_particles=1):
    """All runs side by side."""
    import pyro
    import torch

    from pyro_manifold.infer import OHMC, SMC

    torch.set_default_dtype(torch.float64)
    with stopwatch() as times:
        pyro.set_rng_seed(0)
        smc = SMC(OHMC(problem.pyro_model), times_particles * particles, runs, disable_progbar=True)
        smc.run()
    return smc.log_evidences.tolist(), times


def pymc(problem, particles, runs, kernel="IMH", **options):
    """One chain after the other."""
    import pymc
    import pytensor.link.numba.linker  # noqa: F401  which it would import when it compiles

    logging.getLogger("pymc").setLevel(logging.ERROR)
    with stopwatch() as times, problem.pymc_model():
        options |= {"progressbar": False, "compute_convergence_checks": False, "random_seed": list(range(runs))}
        trace = pymc.sample_smc(particles, getattr(pymc.smc, kernel), chains=runs, cores=1, **options)
    stages = trace.sample_stats["log_marginal_likelihood"].values
    # Chains with different numbers of stages are the entries of a single row.
    return [_last(chain) for chain in (stages if len(stages) == runs else stages[0])], times


def _last(values):
    """The last number among a chain's stages."""
    flat = np.concatenate([np.ravel(np.asarray(each, dtype=float)) for each in np.ravel(values)])
    return flat[np.isfinite(flat)][-1]


def blackjax(problem, particles, runs, moves=5, steps=10, step_size=0.3):
    """One run after the other, through one compiled step: HMC, whose masses come from the particles of the level."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.smc import inner_kernel_tuning, resampling

    jax.config.update("jax_enable_x64", True)
    draw, log_prior, log_likelihood = problem.jax_parts()
    jax.devices()

    def settings(_, state, __):
        variances = jnp.var(state.particles, 0) + 1e-8
        return {
            "step_size": jnp.array([step_size]),
            "inverse_mass_matrix": variances[None],
            "num_integration_steps": jnp.array([steps]),
        }

    with stopwatch() as times:
        start = jax.jit(jax.vmap(draw))
        drawn = start(jax.random.split(jax.random.PRNGKey(0), particles))
        first = settings(None, SimpleNamespace(particles=drawn), None)
        kernel = blackjax.hmc.build_kernel(), blackjax.hmc.init, resampling.systematic, settings, first
        densities, sizes = (log_prior, log_likelihood), {"num_mcmc_steps": moves, "target_ess": 0.5}
        algorithm = inner_kernel_tuning.as_top_level_api(blackjax.adaptive_tempered_smc, *densities, *kernel, **sizes)
        step = jax.jit(algorithm.step)
        evidences = []
        for seed in range(runs):
            key, own = jax.random.split(jax.random.PRNGKey(seed))
            state, total = algorithm.init(start(jax.random.split(own, particles))), 0.0
            while float(state.sampler_state.tempering_param) < 1:
                key, own = jax.random.split(key)
                state, info = step(own, state)
                total += float(info.log_likelihood_increment)
            evidences.append(total)
    return evidences, times


WAYS = {
    "pyro_manifold": (ours, {}), "pyro_manifold, 4 times the particles": (ours, {"times_particles": 4}),
    "PyMC, IMH": (pymc, {}), "PyMC, IMH, threshold 0.001": (pymc, {"correlation_threshold": 0.001}),
    "PyMC, MH": (pymc, {"kernel": "MH"}), "BlackJAX, HMC 5 × 10": (blackjax, {}),
    "BlackJAX, HMC 15 × 5": (blackjax, {"moves": 15, "steps": 5}),
    "BlackJAX, HMC 5 × 20, ε 0.03": (blackjax, {"steps": 20, "step_size": 0.03}),
}  # fmt: skip


def measured(name, way, particles, runs):
    warnings.filterwarnings("ignore")
    function, options = WAYS[way]
    evidences, times = function(PROBLEMS[name], particles, runs, **options)
    return {"evidences": evidences, **times}


def row(name, way, particles, runs):
    sizes = str(particles), str(runs)
    found = run_apart("benchmarks.accuracy.evidence.peers", name, way, *sizes, threads=1, limit=_LIMIT)
    if "failed" in found:
        return name, way, found["failed"]
    errors = np.array(found["evidences"]) - PROBLEMS[name].truth()[0]
    figures = math.sqrt((errors**2).mean()), errors.mean(), found["cpu_seconds"] / runs
    return name, way, *formatted(".3f +.3f .2f", *figures)


def main(particles, runs, names):
    print(HEADER.format(particles=particles, runs=runs))
    compared = [name for name, problem in PROBLEMS.items() if problem.pymc_model and (not names or name in names)]
    show(TABLE, (row(name, way, particles, runs) for name in compared for way in WAYS))


if __name__ == "__main__":
    confine(int(os.environ.get("OMP_NUM_THREADS", "1")))
    name, way, particles, runs = sys.argv[1:]
    print(json.dumps(measured(name, way, int(particles), int(runs))))
