"""Chains left where there is hardly any probability neither spoil the adaptation of others nor stay unnamed."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.adaptation import left_behind, representatives, warn_of_collapse


def test_chains_far_above_the_median_are_left_and_represented_by_others():
    energy = torch.tensor([3.0, 900.0, 1.0, torch.inf, 40.0])
    left = left_behind(energy, 10)
    assert left.tolist() == [False, True, False, True, False]
    assert representatives(left).tolist() == [0, 2, 2, 0, 4]
    assert not left_behind(torch.full((3,), torch.nan), 10).any()


def walled():
    """A standard normal distribution and, behind a wall, a narrow valley 400 above."""
    x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).mask(False).to_event(1))
    behind = (x < -50).all(-1)
    pyro.factor("density", torch.where(behind, -400 - 5e3 * (x + 100).square().sum(-1), -0.5 * x.square().sum(-1)))


@pytest.mark.filterwarnings("ignore:Chain 5 moved in fewer than 5 %")
def test_a_chain_left_behind_is_named_and_the_others_are_as_without_it():
    start = {"x": torch.randn(16, 3)}
    start["x"][5] = -100.0
    mcmc = MCMC(OHMC(walled), 500, 300, num_chains=16, disable_progbar=True, initial_params=start)
    with pytest.warns(
        UserWarning, match=r"Chain 5 is left behind after warm-up, at log densities more than 4\d\d below"
    ):
        mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)["x"]
    others = torch.cat([draws[:5], draws[6:]])
    assert_mean(others.square().mean(-1), 1.0)
    assert mcmc.kernel.step_size > 0.3


def test_a_collapsed_step_size_is_reported():
    with pytest.warns(UserWarning, match=r"The step size has collapsed to 1e-08 in warm-up: 1000 steps"):
        warn_of_collapse(1e-8, 1000, 2.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_collapse(0.1, 22, 2.2)
