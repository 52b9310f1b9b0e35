"""Problems that every peer samples: the same density in PyTorch and in JAX, the same functionals, a truth.

A density is over an orthonormal X (n×p) and a vector of unconstrained real coordinates; base measure Haar × Lebesgue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from benchmarks.estimates import mean_and_error
from examples.datasets import data_folder
from problems.gibbs import matrix_langevin
from problems.importance import haar, weighted_mean

SIGMA = 0.3


@dataclass(frozen=True)
class Problem:
    """One target.

    Attributes:
        name: how tables call it.
        shape: (n, p) of the orthonormal site.
        coordinates: number of unconstrained coordinates beside it.
        log_density: ``(X, v, array_module) -> scalar`` for torch and jax.numpy alike.
        functionals: ``{name: (X, v) -> values}`` on NumPy arrays ``(..., n, p)`` and ``(..., coordinates)``.
        truths: ``{functional: (mean, standard error)}``, those that are known.
    """

    name: str
    shape: tuple[int, int]
    coordinates: int
    log_density: Callable
    functionals: dict[str, Callable]
    truths: Callable[[], dict[str, tuple[float, float]]] = dict

    def values(self, draws):
        """``{functional: (chains, draws)}`` of draws ``{site: (chains, draws, ...)}``."""
        return {name: f(draws["X"], draws.get("v")) for name, f in self.functionals.items()}

    def pyro_model(self):
        """For both packages that sample a Pyro model."""
        import pyro
        import pyro.distributions as dist
        import torch

        from pyro_manifold.distributions import StiefelUniform

        X = pyro.sample("X", StiefelUniform(*self.shape))
        v = None
        if self.coordinates:
            flat = dist.Normal(0.0, 1.0).expand([self.coordinates]).to_event(1).mask(False)
            v = pyro.sample("v", flat)
        pyro.factor("density", self.log_density(X, v, torch))

    def numpyro_model(self):
        """Over the polar expansion."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        Z = numpyro.sample("Z", dist.Normal(0.0, 1.0).expand(self.shape).to_event(2))
        # By the p×p eigenproblem, which JAX differentiates faster than an SVD of Z.
        eigenvalues, basis = jnp.linalg.eigh(Z.T @ Z)
        X = numpyro.deterministic("X", Z @ (basis / jnp.sqrt(eigenvalues)) @ basis.T)
        v = None
        if self.coordinates:
            v = numpyro.sample("v", dist.ImproperUniform(dist.constraints.real_vector, (), (self.coordinates,)))
        numpyro.factor("density", self.log_density(X, v, jnp))


def entries(n, p):
    return {f"X[{i},{j}]": (lambda X, v, i=i, j=j: X[..., i, j]) for i in range(n) for j in range(p)}


def importance_truths(functionals, shape, log_density, draws=3_000_000):
    """Importance sampling from Haar measure, for problems without other coordinates; ``log_density`` takes a batch."""
    rng, batches = np.random.default_rng(0), []
    for _ in range(draws // 100_000):
        X = haar(rng, 100_000, *shape)
        batches.append((log_density(X), np.stack([f(X, None) for f in functionals.values()])))
    log_weights = np.concatenate([weights for weights, _ in batches])
    values = np.concatenate([values for _, values in batches], axis=1)
    return {name: weighted_mean(x, log_weights) for name, x in zip(functionals, values, strict=True)}


# ---- the matrix mixture, as we read the OHMC paper: every entry near 1 or near 2 ----------------------------


def mixture_log_densities(X, xp):
    """Of ``(..., n, p)``."""
    near_one, near_two = (-((X - centre) ** 2) / (2 * SIGMA**2) for centre in (1, 2))
    return xp.logaddexp(near_one, near_two).sum((-2, -1))


def mixture(n, p):
    def log_density(X, v, xp):
        return mixture_log_densities(X, xp)

    functionals = entries(n, p)
    truths = cache(lambda: importance_truths(functionals, (n, p), partial(mixture_log_densities, xp=np)))
    return Problem(f"mixture V({n},{p})", (n, p), 0, log_density, functionals, truths)


# ---- matrix Langevin ----------------------------------------------------------------------------------------


def langevin(n, p):
    rng = np.random.default_rng(n)
    F = haar(rng, 1, n, p)[0] * np.linspace(2.0, 1.0, p) * n / 2

    def log_density(X, v, xp):
        return (xp.asarray(F) * X).sum()

    functionals = {"tr FᵀX": lambda X, v: (F * X).sum((-2, -1))}
    functionals |= {f"f{k}·x{k}": (lambda X, v, k=k: (F[:, k] * X[..., :, k]).sum(-1)) for k in range(p)}

    @cache
    def truths():
        sweeps = matrix_langevin(F, chains=50 if n * p > 1000 else 200)
        values = np.array([[f(X, None) for f in functionals.values()] for X in sweeps]).transpose(1, 2, 0)
        return {name: tuple(mean_and_error(x)) for name, x in zip(functionals, values, strict=True)}

    return Problem(f"Langevin V({n},{p})", (n, p), 0, log_density, functionals, truths)


# ---- the network eigenmodel of Hoff 2009 --------------------------------------------------------------------


# NumPyro NUTS over the polar expansion, 4 chains of 1500 + 1500 draws, R-hat 1.001: mean and standard error.
NETWORK_TRUTHS = {
    "λ0": (-165.419, 0.155),
    "λ1": (142.071, 0.244),
    "λ2": (224.868, 0.188),
    "intercept": (-4.811, 0.001),
    "logit 0": (-4.823, 0.008),
    "logit 5000": (-4.778, 0.007),
    "logit 12000": (-4.067, 0.015),
    "logit 20000": (-4.902, 0.010),
    "logit 30000": (-4.993, 0.011),
}


def eigenmodel(name, adjacency, pairs=(), truths=dict):
    """Links of a symmetric ``adjacency``; ``pairs`` of its upper triangle have their logits among the functionals."""
    rows, columns = np.triu_indices(len(adjacency), 1)
    observed = adjacency[rows, columns]

    def log_density(X, v, xp):
        """Eigenvalues and intercept in v; priors N(0, 16²) and N(0, 10²)."""
        eigenvalues, intercept = v[:3], v[3]
        logits = intercept + ((X * eigenvalues) @ X.T)[rows, columns]
        likelihood = (xp.asarray(observed) * logits - xp.logaddexp(xp.zeros_like(logits), logits)).sum()
        return likelihood - 0.5 * (eigenvalues**2).sum() / 16.0**2 - 0.5 * intercept**2 / 10.0**2

    def logit(k):
        i, j = rows[k], columns[k]
        return lambda X, v: v[..., 3] + (X[..., i, :] * v[..., :3] * X[..., j, :]).sum(-1)

    functionals = {f"λ{k}": (lambda X, v, k=k: np.sort(v[..., :3], -1)[..., k]) for k in range(3)}
    functionals["intercept"] = lambda X, v: v[..., 3]
    functionals |= {f"logit {k}": logit(k) for k in pairs}
    return Problem(name, (len(adjacency), 3), 4, log_density, functionals, truths)


def network():
    """The protein interactions of Hoff, where the data are there."""
    path = data_folder() / "protein_network" / "hoff.dat"
    if not path.exists():
        return None
    pairs = (0, 5000, 12000, 20000, 30000)
    return eigenmodel("network 270×3", np.loadtxt(path), pairs, lambda: NETWORK_TRUTHS)


PROBLEMS = {
    problem.name: problem
    for problem in [mixture(2, 2), mixture(3, 2), langevin(10, 3), langevin(50, 5), langevin(200, 10), network()]
    if problem is not None
}
