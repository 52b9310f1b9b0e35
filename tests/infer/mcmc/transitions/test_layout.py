"""Sites are packed into blocks and come back, also those without coordinates."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import MCMC, OHMC, SMC
from pyro_manifold.infer.mcmc.transitions import Layout

Y = torch.linspace(-1.0, 2.0, 12)


def one_component(y):
    """A mixture as it is written for any number of components; its weights are the number 1."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(1)))
    means = pyro.sample("means", dist.Normal(0.0, 1.5).expand([1]).to_event(1))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)


@pytest.mark.parametrize("full_mass", [False, True])
def test_sites_come_back(full_mass):
    sites = {"a": torch.randn(3), "b": torch.randn(3, 0), "c": torch.randn(3, 2, 4), "U": torch.randn(3, 5, 2)}
    layout = Layout.build({name: value[0] for name, value in sites.items()}, ["U"], full_mass)
    blocks = layout.pack(sites)
    assert [tuple(block.shape) for block in blocks.values()] == [(3, 5, 2), (3, 9)]
    back = layout.unpack(blocks)
    assert sites.keys() == back.keys()
    assert all(torch.equal(sites[name], back[name]) for name in sites)


def test_a_mixture_of_one_component():
    """Its mean is normal, by conjugacy."""
    mcmc = MCMC(OHMC(one_component), 100, 100, num_chains=16, disable_progbar=True)
    mcmc.run(Y)
    variance = 1 / (len(Y) + 1.5**-2)
    draws = mcmc.get_samples(group_by_chain=True)
    means = draws["means"][..., 0]
    assert (draws["weights"] == 1).all()
    assert_mean(means, variance * Y.sum())
    assert_mean((means - variance * Y.sum()).square(), torch.tensor(variance))


@pytest.mark.long
def test_the_evidence_of_one_component():
    smc = SMC(OHMC(one_component), 512, disable_progbar=True)
    smc.run(Y)
    covariance = torch.eye(len(Y)) + 1.5**2
    truth = dist.MultivariateNormal(torch.zeros(len(Y)), covariance).log_prob(Y)
    assert abs(smc.log_evidence - truth) < 4 * smc.log_evidence_error
