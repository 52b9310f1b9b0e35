"""Probabilities of particles beyond all draws, against simulation."""

import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.diagnostics import find_missed_regions
from pyro_manifold.diagnostics.missed_regions import _effective_draws, _tail


def test_the_probability_of_particles_beyond_is_that_of_exponential_tails():
    """200 draws and 300 particles, 4,000 times: how often 1, 2 or 4 are beyond 1.2 times the furthest draw."""
    draws, particles = torch.distributions.Exponential(1.0), torch.distributions.Exponential(1.0)
    furthest = torch.stack([draws.sample((200,)).max() for _ in range(4000)])
    beyond = torch.stack([(particles.sample((300,)) > 1.2 * largest).sum() for largest in furthest])
    for count in (1.0, 2.0, 4.0):
        expected = float(_tail(torch.tensor([count]), 300.0, torch.tensor([200.0]), 1.2))
        assert_mean((beyond >= count).double(), torch.tensor(expected))


def test_states_of_one_chain_count_as_one():
    """Sixteen successive particles beyond are not noticed as states of one chain, and are as particles of their own."""
    draws, particles = torch.randn(4, 100, 1), torch.randn(4, 160, 1)
    particles[0, :16] = 6.5
    among = torch.ones(4, 160, dtype=torch.bool)
    found = [
        find_missed_regions({"x": draws}, {"x": particles}, among, states=states).missed.sum() for states in (1, 16)
    ]
    assert [int(count) for count in found] == [16, 0]


def test_the_effective_number_of_draws():
    """Blocks of ten equal draws are worth a tenth; entries that stand still one."""
    draws = torch.randn(8, 1000, 5).repeat_interleave(10, 1)
    assert float(_effective_draws(draws).mean() / 8000) == pytest.approx(1.0, rel=0.2)
    assert _effective_draws(torch.ones(8, 100, 2)).tolist() == [1.0, 1.0]


def test_rounding_puts_no_particle_apart():
    draws, particles = torch.ones(2, 50, 3), torch.ones(2, 50, 3)
    draws[0, :, 1] += 2e-16
    particles[:, :, 1:] -= 1e-15
    assert not find_missed_regions({"x": draws}, {"x": particles}, torch.ones(2, 50, dtype=torch.bool)).missed.any()
