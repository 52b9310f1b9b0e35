"""Draws of warm-up: kept by a consumer and exported to ArviZ."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, WarmupDraws
from tests.diagnostics.either_arviz import groups

EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)


def hierarchy(y):
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(5.0)))
    with pyro.plate("school", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, 12.0), obs=y)


def run_with(warmup, kernel, *args, warmup_steps, **options):
    mcmc = MCMC(kernel, 20, warmup_steps, num_chains=3, consumers=[warmup], disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


def test_values_are_those_whose_density_was_recorded():
    """Also where warm-up changes coordinates: an effect of centredness c has a density larger by τ^(1 − c) there."""
    warmup = WarmupDraws()
    run_with(warmup, OHMC(hierarchy), EFFECTS, warmup_steps=300)
    draws, lp = warmup.posterior.draws, warmup.posterior.statistics["lp"]
    mu, tau, theta = draws["mu"], draws["tau"], draws["theta"]
    expected = dist.Normal(0.0, 5.0).log_prob(mu) + dist.HalfCauchy(5.0).log_prob(tau) + tau.log()
    expected = expected + dist.Normal(mu[..., None], tau[..., None]).log_prob(theta).sum(-1)
    expected = expected + dist.Normal(theta, 12.0).log_prob(EFFECTS).sum(-1)
    changes = len(EFFECTS) * tau.log()
    not_centred = (changes * (lp - expected)).sum(0) / (changes**2).sum(0)  # one number for all chains
    assert not_centred.min() > -1e-6
    assert not_centred.max() > 0.5, "the effects were never centred, so that nothing was tested"
    torch.testing.assert_close(lp, expected + not_centred * changes, rtol=1e-6, atol=1e-6)


def test_groups_have_their_own_length_and_the_dimensions_of_the_posterior():
    warmup = WarmupDraws()
    mcmc = run_with(warmup, OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2))), warmup_steps=30)
    exported = mcmc.to_inferencedata(warmup=warmup, dims={"U": ["row", "column"]}, coords={"row": list("abcd")})
    found = exported["warmup_posterior"]["U"]
    assert found.dims == ("chain", "draw", "row", "column")
    assert found.shape == (3, 30, 4, 2)
    assert list(found["row"].values) == list("abcd")
    assert exported["posterior"].sizes["draw"] == 20
    statistics = exported["warmup_sample_stats"]
    assert (statistics["step_size"].values[:, 0] != statistics["step_size"].values[:, -1]).all()
    assert not {name for name in groups(mcmc.to_inferencedata()) if "warmup" in name}


def test_a_second_run_begins_anew_and_the_draws_do_not_change():
    def drawn(*consumers):
        pyro.set_rng_seed(1)
        kernel = OHMC(lambda: pyro.sample("U", StiefelUniform(3, 2)))
        mcmc = MCMC(kernel, 25, 20, num_chains=2, consumers=consumers, disable_progbar=True)
        mcmc.run()
        return mcmc

    warmup = WarmupDraws()
    with_warmup = drawn(warmup)
    torch.testing.assert_close(with_warmup.get_samples(), drawn().get_samples(), rtol=0, atol=0)
    with_warmup.run()
    assert warmup.posterior.draws["U"].shape == (2, 20, 3, 2)


def test_without_warmup_it_names_what_to_do():
    warmup = WarmupDraws()
    mcmc = run_with(warmup, OHMC(lambda: pyro.sample("U", StiefelUniform(3, 2)), step_size=0.3), warmup_steps=0)
    with pytest.raises(ValueError, match=r"no iteration of warm-up; pass it to MCMC"):
        mcmc.to_inferencedata(warmup=warmup)
    with pytest.raises(ValueError, match=r"warmup has 5 chains, expected the 3 of the run"):
        mcmc.to_inferencedata(warmup={"U": torch.zeros(5, 10, 3, 2)})
