"""Weights, steps of the inverse temperature and resampling, against what can be worked out by hand."""

import math

import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer.smc import effective_share, log_mean_weight, next_inverse_temperature, systematic_resampling


def test_shares_and_means_of_two_weights():
    log_weights = torch.tensor([[3.0, 1.0], [5.0, 5.0]]).log() + 700  # would overflow unless in logarithms
    torch.testing.assert_close(effective_share(log_weights), torch.tensor([16 / 20, 1.0]))
    torch.testing.assert_close(log_mean_weight(log_weights), torch.tensor([2.0, 5.0]).log() + 700)


def test_a_step_leaves_the_share_that_was_asked_for():
    # Half of the particles have L = 0, the others L = 2: w is 1 or e^(-2δ) =: v, and the share (1 + v)²/(2 (1 + v²)).
    negative_log_likelihood = torch.tensor([[0.0, 2.0] * 4, [0.0, 200.0] * 4])
    start = torch.tensor([0.1, 0.2])
    new = next_inverse_temperature(negative_log_likelihood, start, 0.8)
    v = 1 / 3  # (1 + v)² = 1.6 (1 + v²)
    torch.testing.assert_close(new, start + math.log(1 / v) / torch.tensor([2.0, 200.0]))


def test_the_last_step_ends_at_one_exactly():
    negative_log_likelihood = torch.randn(3, 50)
    new = next_inverse_temperature(negative_log_likelihood, torch.tensor([0.999, 0.5, 1.0]), 0.01)
    assert (new == 1).all()


def test_a_step_is_never_zero():
    new = next_inverse_temperature(torch.tensor([[0.0, 1e30]]), torch.zeros(1), 0.9)
    assert float(new) > 0


def test_each_particle_comes_as_often_as_it_should_or_once_more():
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(200, 30, generator=random)
    drawn = systematic_resampling(weights.log(), 100, random)
    counts = torch.nn.functional.one_hot(drawn, 30).sum(1)
    expected = 100 * weights / weights.sum(1, keepdim=True)
    assert (counts >= expected.floor()).all()
    assert (counts <= expected.floor() + 1).all()
    for k in range(3):
        assert_mean(counts[:, k] - expected[:, k], 0.0)
