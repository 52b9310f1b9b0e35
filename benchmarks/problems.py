"""Problems that every peer samples: the same density in PyTorch and in JAX, the same functionals, a truth.

A density is over an orthonormal X (n×p) and a vector of unconstrained real coordinates; base measure Haar × Lebesgue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from benchmarks.gibbs import matrix_langevin
from examples.datasets import data_folder
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
        settings: ``{peer: overrides}`` of chains, warm-up and draws.
    """

    name: str
    shape: tuple[int, int]
    coordinates: int
    log_density: Callable
    functionals: dict[str, Callable]
    truths: Callable[[], dict[str, tuple[float, float]]] = dict
    settings: dict[str, dict] = field(default_factory=dict)


def entries(n, p):
    return {f"X[{i},{j}]": (lambda X, v, i=i, j=j: X[..., i, j]) for i in range(n) for j in range(p)}


def importance_truths(problem_name, log_density, draws=3_000_000):
    """Importance sampling from Haar measure, for problems without other coordinates."""
    problem = PROBLEMS[problem_name]
    rng, sums = np.random.default_rng(0), []
    for _ in range(draws // 100_000):
        X = haar(rng, 100_000, *problem.shape)
        values = np.stack([f(X, None) for f in problem.functionals.values()], -1)
        sums.append((log_density(X), values))
    log_weights = np.concatenate([w for w, _ in sums])
    values = np.concatenate([v for _, v in sums]).T
    return {name: weighted_mean(x, log_weights) for name, x in zip(problem.functionals, values, strict=True)}


# ---- the matrix mixture, as we read the OHMC paper: every entry near 1 or near 2 ----------------------------


def mixture_log_density(X, v, xp):
    near_one, near_two = -((X - 1) ** 2) / (2 * SIGMA**2), -((X - 2) ** 2) / (2 * SIGMA**2)
    return xp.logaddexp(near_one, near_two).sum()


def _mixture_numpy(X):
    near_one, near_two = -((X - 1) ** 2) / (2 * SIGMA**2), -((X - 2) ** 2) / (2 * SIGMA**2)
    return np.logaddexp(near_one, near_two).sum((-2, -1))


def mixture(n, p):
    name = f"mixture V({n},{p})"
    truths = cache(lambda: importance_truths(name, _mixture_numpy))
    return Problem(name, (n, p), 0, mixture_log_density, entries(n, p), truths)


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
        import arviz

        sweeps = matrix_langevin(F, chains=50 if n * p > 1000 else 200)
        values = np.array([[f(X, None) for f in functionals.values()] for X in sweeps]).transpose(1, 2, 0)
        errors = [x.std() / np.sqrt(arviz.ess(x, method="mean")) for x in values]
        return {name: (float(x.mean()), float(e)) for name, x, e in zip(functionals, values, errors, strict=True)}

    return Problem(f"Langevin V({n},{p})", (n, p), 0, log_density, functionals, truths)


# ---- the network eigenmodel of Hoff 2009 --------------------------------------------------------------------


def network():
    path = data_folder() / "protein_network" / "hoff.dat"
    if not path.exists():
        return None
    adjacency = np.loadtxt(path)
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
    functionals |= {f"logit {k}": logit(k) for k in (0, 5000, 12000, 20000, 30000)}
    # NumPyro NUTS over the polar expansion, 4 chains of 1500 + 1500 draws, R-hat 1.001: mean and standard error.
    reference = {
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
    return Problem("network 270×3", (270, 3), 4, log_density, functionals, lambda: reference)


PROBLEMS = {
    problem.name: problem
    for problem in [mixture(2, 2), mixture(3, 2), langevin(10, 3), langevin(50, 5), langevin(200, 10), network()]
    if problem is not None
}
