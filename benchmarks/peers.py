"""One function a peer: draws ``X (chains, draws, n, p)``, ``v (chains, draws, k)`` and figures of the whole run."""

from __future__ import annotations

import time
import warnings

import numpy as np


def pyro_model(problem):
    """The problem as a Pyro model, for both packages that sample one."""
    import pyro
    import pyro.distributions as dist
    import torch

    from pyro_manifold.distributions import StiefelUniform

    def model():
        X = pyro.sample("X", StiefelUniform(*problem.shape))
        v = None
        if problem.coordinates:
            flat = dist.Normal(0.0, 1.0).expand([problem.coordinates]).to_event(1).mask(False)
            v = pyro.sample("v", flat)
        pyro.factor("density", problem.log_density(X, v, torch))

    return model


def pyro_manifold(problem, *, chains, warmup, draws, jit_compile=False, **options):
    import pyro
    import torch

    from pyro_manifold.infer import MCMC, OHMC

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    warnings.filterwarnings("ignore")

    steps = []
    started = time.perf_counter()
    kernel = OHMC(pyro_model(problem), jit_compile=jit_compile, **options)
    hook = lambda kernel, params, stage, i: steps.append(kernel.last_num_steps)  # noqa: E731
    mcmc = MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True, hook_fn=hook)
    mcmc.run()
    seconds = time.perf_counter() - started
    samples = mcmc.get_samples(group_by_chain=True)
    v = samples["v"].numpy() if problem.coordinates else None
    return samples["X"].numpy(), v, {"seconds": seconds, "gradients": sum(steps) * chains}


def numpyro_model(problem):
    """The problem as a NumPyro model over the polar expansion."""
    import jax.numpy as jnp
    import numpyro as npy
    import numpyro.distributions as dist

    def model():
        Z = npy.sample("Z", dist.Normal(0.0, 1.0).expand(problem.shape).to_event(2))
        # By the p×p eigenproblem, which JAX differentiates faster than an SVD of Z.
        eigenvalues, basis = jnp.linalg.eigh(Z.T @ Z)
        X = npy.deterministic("X", Z @ (basis / jnp.sqrt(eigenvalues)) @ basis.T)
        v = None
        if problem.coordinates:
            v = npy.sample("v", dist.ImproperUniform(dist.constraints.real_vector, (), (problem.coordinates,)))
        npy.factor("density", problem.log_density(X, v, jnp))

    return model


def numpyro(problem, *, chains, warmup, draws, chain_method="vectorized", algorithm="NUTS", **options):
    import jax
    from numpyro.infer import HMC, MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    started = time.perf_counter()
    kernel = {"NUTS": NUTS, "HMC": HMC}[algorithm](numpyro_model(problem), **options)
    mcmc = MCMC(
        kernel, num_warmup=warmup, num_samples=draws, num_chains=chains, chain_method=chain_method, progress_bar=False
    )
    mcmc.run(jax.random.PRNGKey(0), extra_fields=("num_steps",))
    samples = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    seconds = time.perf_counter() - started
    steps = float(np.asarray(mcmc.get_extra_fields()["num_steps"]).mean())
    # NumPyro reports steps of the draws only; warm-up is taken to need as many.
    return samples["X"], samples.get("v"), {"seconds": seconds, "gradients": steps * chains * (draws + warmup)}


def pyro_nuts(problem, *, chains, warmup, draws, **options):
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)

    started = time.perf_counter()
    runs = []
    for _ in range(chains):
        mcmc = MCMC(NUTS(pyro_model(problem), **options), draws, warmup, disable_progbar=True)
        mcmc.run()
        runs.append(mcmc.get_samples())
    seconds = time.perf_counter() - started
    X = np.stack([run["X"].numpy() for run in runs])
    v = np.stack([run["v"].numpy() for run in runs]) if problem.coordinates else None
    return X, v, {"seconds": seconds, "gradients": float("nan")}


def mici(problem, *, chains, warmup, draws):
    """Constrained HMC with a dynamic number of steps, the matrix flattened, XᵀX = I as p(p+1)/2 equations."""
    import jax
    import jax.numpy as jnp
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import DynamicMultinomialHMC
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    jax.config.update("jax_enable_x64", True)
    n, p = problem.shape
    rows, columns = np.triu_indices(p)
    calls = 0

    def potential(q):
        return -problem.log_density(q.reshape(n, p), None, jnp)

    def constraint(q):
        X = q.reshape(n, p)
        return (X.T @ X - jnp.eye(p))[rows, columns]

    value, value_and_gradient = jax.jit(potential), jax.jit(jax.value_and_grad(potential))
    residual, jacobian = jax.jit(constraint), jax.jit(jax.jacobian(constraint))

    def gradient(q):
        nonlocal calls
        calls += 1
        energy, gradient = value_and_gradient(q)
        return np.asarray(gradient), float(energy)

    started = time.perf_counter()
    rng = np.random.default_rng(0)
    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: float(value(q)),
        grad_neg_log_dens=gradient,
        constr=lambda q: np.asarray(residual(q)),
        jacob_constr=lambda q: (np.asarray(jacobian(q)), np.asarray(residual(q))),
    )
    sampler = DynamicMultinomialHMC(system, ConstrainedLeapfrogIntegrator(system), rng)
    starts = [np.linalg.qr(rng.standard_normal((n, p)))[0].ravel() for _ in range(chains)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = sampler.sample_chains(warmup, draws, starts, display_progress=False)
    seconds = time.perf_counter() - started
    return np.stack(outputs.traces["pos"]).reshape(chains, draws, n, p), None, {"seconds": seconds, "gradients": calls}


CONFIGURATIONS = {
    "pyro_manifold OHMC": (pyro_manifold, {}),
    "pyro_manifold OHMC, compiled": (pyro_manifold, {"jit_compile": True}),
    "NumPyro NUTS, vectorised": (numpyro, {}),
    "NumPyro NUTS, sequential": (numpyro, {"chain_method": "sequential"}),
    "NumPyro HMC, vectorised": (numpyro, {"algorithm": "HMC"}),
    "Pyro NUTS": (pyro_nuts, {}),
    "Mici constrained NUTS": (mici, {}),
}
