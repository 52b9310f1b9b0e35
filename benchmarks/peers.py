"""One runner for each peer: a problem, chains, warm-up, draws, seed, options -> draws of all sites, figures of the run.

A problem is a `benchmarks.problems.problem.Problem`, or anything with the model that the peer asks for.

The same clock for all: it starts when everything is imported, and ends when the draws are there. ``compiling`` is
the part of it that goes before the first iteration, or into a compiler later: building the model, tracing it,
compiling. The rest is warm-up and draws.
"""

import time
import warnings
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from benchmarks.timing import covered, stopwatch, timed
from problems.importance import haar


class Run(NamedTuple):
    """Results of a peer.

    Attributes:
        draws: ``{site: (chains, draws, ...)}``.
        figures: ``seconds``, ``compiling``, ``cpu_seconds``, ``gradients``; ``acceptance``, one number a chain,
            ``divergences``, and ``gradients_of_draws``, those after warm-up, where the peer reports them.
    """

    draws: dict[str, np.ndarray]
    figures: dict[str, Any]


class _Steps:
    """Consumer that keeps the number of steps of each iteration, of one or of several at once."""

    def __init__(self):
        self.found = []

    def __call__(self, iteration):
        self.found.append(int(iteration.statistics["n_steps"][0]))

    def several(self, iterations):
        self.found += iterations.statistics["n_steps"][:, 0].int().tolist()


def pyro_manifold(problem, *, chains, warmup, draws, kernel="OHMC", seed=0, **options):
    """Vectorised chains of a kernel of this package, by its name."""
    import pyro
    import torch
    import torch.fx.experimental.symbolic_shapes  # what torch would import at its first broadcast of shapes

    from pyro_manifold import infer
    from pyro_manifold.infer.mcmc.transitions import Executable

    if options.get("jit_compile"):
        import torch._dynamo.config  # what torch.compile would import at its first call
        import torch._inductor.compile_fx

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(seed)
    steps = _Steps()
    with stopwatch() as times:
        kernel = getattr(infer, kernel)(problem.pyro_model, **options)
        building = timed(kernel, "target"), timed(kernel, "run_of"), timed(Executable, "compile")
        mcmc = infer.MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True, consumers=[steps])
        mcmc.run()
    report = mcmc.diagnostics()
    figures = {
        "compiling": sum(map(sum, building)),
        "gradients": sum(steps.found) * chains,
        "gradients_of_draws": sum(steps.found[warmup:]) * chains,
        "acceptance": [float(rate) for rate in report["acceptance_rate"].values()],
        "divergences": sum(map(len, report.get("divergences", {}).values())),
    }
    samples = mcmc.get_samples(group_by_chain=True)
    return Run({name: value.numpy() for name, value in samples.items()}, times | figures)


def pyro_nuts(problem, *, chains, warmup, draws, seed=0, **options):
    """Pyro's NUTS, one chain after the other; it does not tell its gradients."""
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(seed)
    runs, building = [], []
    with stopwatch() as times:
        for _ in range(chains):
            kernel = NUTS(problem.pyro_model, **options)
            building.append(timed(kernel, "setup"))
            mcmc = MCMC(kernel, draws, warmup, disable_progbar=True)
            mcmc.run()
            runs.append({name: value.numpy() for name, value in mcmc.get_samples().items()})
    figures = {"compiling": float(np.sum(building)), "gradients": float("nan")}
    return Run({name: np.stack([run[name] for run in runs]) for name in runs[0]}, times | figures)


@contextmanager
def jax_compiling():
    """A dictionary that has ``compiling`` once the block has ended: what JAX spent on traces and compilation in it."""
    import jax.monitoring

    found, spans = {}, []

    def note(_, seconds, **__):
        now = time.perf_counter()
        spans.append((now - seconds, now))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    found["compiling"] = covered(spans)


def numpyro(problem, *, chains, warmup, draws, chain_method="vectorized", algorithm="NUTS", seed=0, **options):
    """NumPyro's NUTS or HMC; its warm-up is for each chain, also where chains are vectorised."""
    import jax
    from numpyro.infer import HMC, MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    jax.devices()  # JAX finds its processors at its first call
    with stopwatch() as times, jax_compiling() as compiling:
        kernel = {"NUTS": NUTS, "HMC": HMC}[algorithm](problem.numpyro_model, **options)
        sizes = {"num_warmup": warmup, "num_samples": draws, "num_chains": chains}
        mcmc = MCMC(kernel, **sizes, chain_method=chain_method, progress_bar=False)
        mcmc.run(jax.random.PRNGKey(seed), extra_fields=("num_steps", "accept_prob", "diverging"))
        samples = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    found = {name: np.asarray(value) for name, value in mcmc.get_extra_fields(group_by_chain=True).items()}
    figures = {
        # NumPyro reports steps of the draws only; warm-up is taken to need as many.
        "gradients": float(found["num_steps"].mean()) * chains * (draws + warmup),
        "gradients_of_draws": int(found["num_steps"].sum()),
        "acceptance": found["accept_prob"].mean(1).tolist(),
        "divergences": int(found["diverging"].sum()),
    }
    return Run(samples, times | compiling | figures)


def nutpie(problem, *, chains, warmup, draws, max_tree_depth=10, low_rank=False, seed=0):
    """PyMC's model, compiled by Numba, under nutpie's NUTS; one chain after the other, on one core like all others.

    Masses are diagonal, or diagonal with a correction of low rank.
    """
    import numba  # noqa: F401  which PyTensor would import when it compiles
    import nutpie
    import pymc  # noqa: F401
    import pytensor.link.numba.linker  # noqa: F401

    with stopwatch() as times:
        started = time.perf_counter()
        compiled = nutpie.compile_pymc_model(problem.pymc_model())
        compiling = time.perf_counter() - started
        sizes = {"draws": draws, "tune": warmup, "chains": chains, "cores": 1}
        options = {"maxdepth": max_tree_depth, "low_rank_modified_mass_matrix": low_rank, "seed": seed}
        trace = nutpie.sample(compiled, **sizes, **options, progress_bar=False)
    stats = trace.sample_stats
    figures = {
        "compiling": compiling,
        "gradients": float(stats["n_steps"].mean()) * chains * (draws + warmup),
        "gradients_of_draws": int(stats["n_steps"].sum()),
        "divergences": int(stats["diverging"].sum()),
    }
    return Run({name: value.values for name, value in trace.posterior.items()}, times | figures)


def mici_system(problem):
    """X flattened, and v behind it; XᵀX = I as p(p+1)/2 equations; and a list with an entry for each gradient.

    All in NumPy, for Mici's integrator is in NumPy, and a call of a compiled function costs more than such small sums.
    """
    from mici.systems import DenseConstrainedEuclideanMetricSystem

    n, p = problem.shape
    rows, columns = np.triu_indices(p)
    equations, identity = np.arange(len(rows)), np.eye(p)[rows, columns]
    calls = []

    def parts(q):
        return q[: n * p].reshape(n, p), q[n * p :]

    def energy(q):
        return -float(problem.log_density(*parts(q), np))

    def gradient(q):
        calls.append(1)
        by_X, by_v = problem.gradient(*parts(q))
        return -np.concatenate([by_X.ravel(), np.zeros(0) if by_v is None else by_v])

    def residual(q):
        X, _ = parts(q)
        return (X.T @ X)[rows, columns] - identity

    def jacobian(q):
        X, v = parts(q)
        by_X = np.zeros((len(rows), n, p))
        by_X[equations, :, rows] += X.T[columns]
        by_X[equations, :, columns] += X.T[rows]
        return np.concatenate([by_X.reshape(len(rows), n * p), np.zeros((len(rows), len(v)))], 1)

    derivatives = {"grad_neg_log_dens": gradient, "jacob_constr": jacobian}
    return DenseConstrainedEuclideanMetricSystem(energy, residual, **derivatives), calls


def mici(problem, *, chains, warmup, draws, seed=0):
    """Constrained HMC with a dynamic number of steps, from uniform starts; one chain after the other."""
    from mici.integrators import ConstrainedLeapfrogIntegrator
    from mici.samplers import DynamicMultinomialHMC

    with stopwatch() as times, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rng = np.random.default_rng(seed)
        system, calls = mici_system(problem)
        sampler = DynamicMultinomialHMC(system, ConstrainedLeapfrogIntegrator(system), rng)
        # Coordinates start in (-2, 2), as those of Pyro, NumPyro and PyMC do.
        coordinates = rng.uniform(-2, 2, (chains, problem.coordinates))
        starts = np.concatenate([haar(rng, chains, *problem.shape).reshape(chains, -1), coordinates], 1)
        outputs = sampler.sample_chains(warmup, draws, list(starts), display_progress=False)
    positions, size = np.stack(outputs.traces["pos"]), np.prod(problem.shape)
    samples = {"X": positions[..., :size].reshape(chains, draws, *problem.shape)}
    samples |= {"v": positions[..., size:]} if problem.coordinates else {}
    return Run(samples, times | {"compiling": 0.0, "gradients": len(calls)})


PEERS = {"pyro_manifold": pyro_manifold, "NumPyro": numpyro, "nutpie": nutpie, "Pyro NUTS": pyro_nuts, "Mici": mici}
