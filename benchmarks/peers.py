"""One runner for each peer: a problem, chains, warm-up, draws and options -> draws of all sites and figures of the run.

A problem is an object with ``pyro_model`` and ``numpyro_model``, models without arguments; Mici takes ``log_density``
and ``shape`` of one matrix in their place. Seconds are of the whole run: compiling, warm-up and draws.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import stopwatch
from problems.importance import haar


class Run(NamedTuple):
    """What a peer leaves.

    Attributes:
        draws: ``{site: (chains, draws, ...)}``.
        figures: ``seconds``, ``cpu_seconds``, ``gradients``; ``acceptance``, one number a chain, and ``divergences``
            where the peer tells them.
    """

    draws: dict[str, np.ndarray]
    figures: dict[str, Any]


def pyro_manifold(problem, *, chains, warmup, draws, kernel="OHMC", **options):
    """Vectorised chains of a kernel of this package, by its name."""
    import pyro
    import torch

    from pyro_manifold import infer

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    steps = []

    def count(kernel, *_):
        steps.append(int(kernel.run.statistics["n_steps"][0]))

    with stopwatch() as times:
        kernel = getattr(infer, kernel)(problem.pyro_model, **options)
        mcmc = infer.MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True, hook_fn=count)
        mcmc.run()
    report = mcmc.diagnostics()
    figures = {
        "gradients": sum(steps) * chains,
        "acceptance": [float(rate) for rate in report["acceptance rate"].values()],
        "divergences": sum(map(len, report["divergences"].values())),
    }
    samples = mcmc.get_samples(group_by_chain=True)
    return Run({name: value.numpy() for name, value in samples.items()}, times | figures)


def pyro_nuts(problem, *, chains, warmup, draws, **options):
    """Pyro's NUTS, one chain after the other; it does not tell its gradients."""
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    runs = []
    with stopwatch() as times:
        for _ in range(chains):
            mcmc = MCMC(NUTS(problem.pyro_model, **options), draws, warmup, disable_progbar=True)
            mcmc.run()
            runs.append({name: value.numpy() for name, value in mcmc.get_samples().items()})
    return Run({name: np.stack([run[name] for run in runs]) for name in runs[0]}, times | {"gradients": float("nan")})


def numpyro(problem, *, chains, warmup, draws, chain_method="vectorized", algorithm="NUTS", **options):
    """NumPyro's NUTS or HMC; its warm-up is for each chain, also where chains are vectorised."""
    import jax
    from numpyro.infer import HMC, MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    with stopwatch() as times:
        kernel = {"NUTS": NUTS, "HMC": HMC}[algorithm](problem.numpyro_model, **options)
        sizes = {"num_warmup": warmup, "num_samples": draws, "num_chains": chains}
        mcmc = MCMC(kernel, **sizes, chain_method=chain_method, progress_bar=False)
        mcmc.run(jax.random.PRNGKey(0), extra_fields=("num_steps", "accept_prob", "diverging"))
        samples = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    found = {name: np.asarray(value) for name, value in mcmc.get_extra_fields(group_by_chain=True).items()}
    figures = {
        # NumPyro reports steps of the draws only; warm-up is taken to need as many.
        "gradients": float(found["num_steps"].mean()) * chains * (draws + warmup),
        "acceptance": found["accept_prob"].mean(1).tolist(),
        "divergences": int(found["diverging"].sum()),
    }
    return Run(samples, times | figures)


def mici_system(problem):
    """The matrix flattened, XᵀX = I as p(p+1)/2 equations; and a list with an entry for each gradient."""
    import jax
    import jax.numpy as jnp
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    jax.config.update("jax_enable_x64", True)
    n, p = problem.shape
    rows, columns = np.triu_indices(p)
    calls = []

    def potential(q):
        return -problem.log_density(q.reshape(n, p), None, jnp)

    def constraint(q):
        X = q.reshape(n, p)
        return (X.T @ X - jnp.eye(p))[rows, columns]

    value, value_and_gradient = jax.jit(potential), jax.jit(jax.value_and_grad(potential))
    residual, jacobian = jax.jit(constraint), jax.jit(jax.jacobian(constraint))

    def gradient(q):
        calls.append(1)
        energy, gradient = value_and_gradient(q)
        return np.asarray(gradient), float(energy)

    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: float(value(q)),
        grad_neg_log_dens=gradient,
        constr=lambda q: np.asarray(residual(q)),
        jacob_constr=lambda q: (np.asarray(jacobian(q)), np.asarray(residual(q))),
    )
    return system, calls


def mici(problem, *, chains, warmup, draws):
    """Constrained HMC with a dynamic number of steps, from uniform starts; for problems of one matrix alone."""
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import DynamicMultinomialHMC

    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(0)
        system, calls = mici_system(problem)
        sampler = DynamicMultinomialHMC(system, ConstrainedLeapfrogIntegrator(system), rng)
        starts = [start.ravel() for start in haar(rng, chains, *problem.shape)]
        outputs = sampler.sample_chains(warmup, draws, starts, display_progress=False)
    X = np.stack(outputs.traces["pos"]).reshape(chains, draws, *problem.shape)
    return Run({"X": X}, times | {"gradients": len(calls)})


PEERS = {"pyro_manifold": pyro_manifold, "NumPyro": numpyro, "Pyro NUTS": pyro_nuts, "Mici": mici}
