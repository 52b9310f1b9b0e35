"""The mixture of the OHMC paper: factors of exact draws have the density that is sampled, and another has not."""

import numpy as np
import pytest
import torch

from benchmarks.peers import pyro_manifold
from benchmarks.problems.mixtures import FREE_ROWS, exact_draws, factors, product_mixture
from problems.monte_carlo import STANDARD_ERRORS, assert_mean

over_rows = pytest.mark.parametrize("n", [2, 3])


@over_rows
def test_exact_draws_have_the_density_and_not_that_without_the_factor_of_the_measure(n):
    """By Stein's identity, E ∂ log π = 0 and E (1 + v ∂ log π) = 0 of each coordinate v.

    For the density in dR dQ alone each derivative by log rᵢᵢ would be n - i lower.
    """
    Q, v = factors(exact_draws(np.random.default_rng(1), 20_000, n))
    gradient = product_mixture(n).gradient
    scores = torch.tensor(np.array([gradient(*point)[1] for point in zip(Q, v, strict=True)]))
    for k in range(3):
        assert_mean(scores[:, k], 0.0)
        assert_mean(scores[:, k] * torch.tensor(v[:, k]), -1.0)
    wrong = scores[:, 0] - (n - 1)
    assert abs(wrong.mean()) > 3 * STANDARD_ERRORS * wrong.std() / len(wrong) ** 0.5


@pytest.mark.long
@pytest.mark.parametrize("n", [3])  # n = 2: tests/benchmarks/papers/ohmc/test_mixture.py
def test_ohmc_draws_what_exact_draws_have(n):
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
