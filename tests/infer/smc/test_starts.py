"""Chains begin at particles: which, in which coordinates, and that each stays in the mode of its own."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC


def two_groups():
    """An orthonormal matrix and numbers whose support is bounded, in two modes that are far apart."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    pyro.factor("modes", 5 * U[0, 0] + weights[0] + torch.logsumexp(-50 * (scale - torch.tensor([1.0, 3.0])) ** 2, 0))


SUPPORTS = {"weights": dist.constraints.simplex, "scale": dist.constraints.positive}


@pytest.fixture(scope="module")
def particles():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    smc = SMC(OHMC(two_groups), 64, 2, disable_progbar=True)
    smc.run()
    return smc


def test_each_particle_is_taken_once(particles):
    starts = particles.initial_params(128)
    draws = particles.get_samples()
    order, expected = starts["scale"].argsort(), draws["scale"].argsort()
    assert torch.equal(starts["U"][order], draws["U"][expected])
    for name, support in SUPPORTS.items():
        found = biject_to(support)(starts[name])
        torch.testing.assert_close(found[order], draws[name][expected])


def test_chains_begin_there(particles):
    starts = particles.initial_params(8)
    kernel = OHMC(two_groups, step_size=0.05, num_steps=4, adapt_step_size=False)
    mcmc = MCMC(kernel, 30, 30, num_chains=8, initial_params=starts, disable_progbar=True)
    mcmc.run()
    right = mcmc.get_samples(group_by_chain=True)["scale"] > 2  # a barrier of 50 nats between the two
    assert torch.equal(right.all(1), starts["scale"].exp() > 2)
    assert torch.equal(right.any(1), right.all(1))


@pytest.mark.long
def test_of_one_chain_and_of_too_many(particles):
    starts = particles.initial_params()
    assert {name: tuple(value.shape) for name, value in starts.items()} == {"U": (3, 2), "scale": (), "weights": (2,)}
    MCMC(OHMC(two_groups), 10, 10, initial_params=starts, disable_progbar=True).run()
    with pytest.raises(ValueError, match="at most the number of particles, 128"):
        particles.initial_params(129)


def test_particles_that_are_not_there():
    with pytest.raises(ValueError, match=r"call smc\.run"):
        SMC(OHMC(two_groups)).initial_params(2)
