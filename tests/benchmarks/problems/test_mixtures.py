"""The mixture of the OHMC paper: factors of exact draws have the density that is sampled, and another has not."""

import numpy as np
import pytest
import torch

from benchmarks.peers import pyro_manifold
from benchmarks.problems.mixtures import FREE_ROWS, exact_draws, factors, product, product_mixture
from problems.monte_carlo import STANDARD_ERRORS, assert_mean

over_rows = pytest.mark.parametrize("n", [2, 3])


@over_rows
def test_factors_are_those_of_the_matrix(n):
    M = exact_draws(np.random.default_rng(0), 50, n)
    Q, v = factors(M)
    np.testing.assert_allclose(product(Q, v, np), M, atol=1e-12)
    np.testing.assert_allclose(Q.swapaxes(1, 2) @ Q, np.broadcast_to(np.eye(2), (50, 2, 2)), atol=1e-12)


def scores(problem, n, count):
    """Derivatives of the log density by v at factors of exact draws, whose means are 0 if these have the density."""
    Q, v = factors(exact_draws(np.random.default_rng(1), count, n))
    return torch.tensor(np.array([problem.gradient(*point)[1] for point in zip(Q, v, strict=True)]))


@over_rows
def test_exact_draws_have_the_density(n):
    """By Stein's identity, E ∂ log π = 0 and E (1 + v ∂ log π) = 0 of each coordinate v."""
    problem = product_mixture(n)
    found = scores(problem, n, 20_000)
    _, v = factors(exact_draws(np.random.default_rng(1), 20_000, n))
    for k in range(3):
        assert_mean(found[:, k], 0.0)
        assert_mean(found[:, k] * torch.tensor(v[:, k]), -1.0)


@over_rows
def test_without_the_factor_of_the_measure_they_have_not(n):
    """The density in dR dQ alone: each derivative by log rᵢᵢ is n - i lower."""
    found = scores(product_mixture(n), n, 20_000)
    wrong = found[:, 0] - (n - 1)
    assert abs(wrong.mean()) > 3 * STANDARD_ERRORS * wrong.std() / len(wrong) ** 0.5


@over_rows
def test_ohmc_draws_what_exact_draws_say(n):
    problem = product_mixture(n, draws=500_000)
    run = pyro_manifold(problem, chains=32, warmup=200, draws=300)
    values, truths = problem.values(run.draws), problem.truths()
    assert list(values) == list(truths)
    for name, (truth, error) in truths.items():
        assert_mean(torch.tensor(values[name]), truth, error)


@over_rows
def test_the_product_has_the_mean_of_its_modes(n):
    truths = product_mixture(n, draws=100_000).truths()
    M = exact_draws(np.random.default_rng(2), 100_000, n)
    for i in range(n):
        for j in range(2):
            mean, error = truths[f"QR[{i},{j}]"]
            assert (mean, error) == (1.5 if i < FREE_ROWS else 1.0, 0.0)
            assert_mean(torch.tensor(M[:, i, j]), mean)
