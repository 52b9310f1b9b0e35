"""The problems of the speed page, by name: every peer samples the same density, and truths are known."""

from functools import cache

import numpy as np

from benchmarks.estimates import mean_and_error
from benchmarks.problems.mixtures import entries_near_one_or_two, product_mixture
from benchmarks.problems.network import network
from benchmarks.problems.problem import Problem
from problems.gibbs import matrix_langevin
from problems.importance import haar


def langevin(n, p):
    rng = np.random.default_rng(n)
    F = haar(rng, 1, n, p)[0] * np.linspace(2.0, 1.0, p) * n / 2

    def log_density(X, v, xp):
        # PyTensor has no asarray and needs none.
        return ((xp.asarray(F) if hasattr(xp, "asarray") else F) * X).sum()

    functionals = {"tr FᵀX": lambda X, v: (F * X).sum((-2, -1))}
    functionals |= {f"f{k}·x{k}": (lambda X, v, k=k: (F[:, k] * X[..., :, k]).sum(-1)) for k in range(p)}

    @cache
    def truths():
        sweeps = matrix_langevin(F, chains=50 if n * p > 1000 else 200)
        values = np.array([[f(X, None) for f in functionals.values()] for X in sweeps]).transpose(1, 2, 0)
        return {name: tuple(mean_and_error(x)) for name, x in zip(functionals, values, strict=True)}

    return Problem(f"Langevin V({n},{p})", (n, p), 0, log_density, functionals, truths, lambda X, v: (F, None))


SMALL = [product_mixture(2), product_mixture(3), entries_near_one_or_two(2, 2), entries_near_one_or_two(3, 2)]
LARGER = [langevin(10, 3), langevin(50, 5), langevin(200, 10), network()]
PROBLEMS = {problem.name: problem for problem in [*SMALL, *LARGER] if problem is not None}
