"""Flat priors: runs begin within the support, without initial values."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution, constraints
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.infer.autoguide import initialization as strategies

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints as manifolds
from pyro_manifold.density import target_from_model
from pyro_manifold.infer import MCMC, OHMC, SMC, SVI, Predictive
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal

Y = torch.tensor([1.0, 2.0, 4.0, 5.0, 3.0, 3.0])


def flat(support, *event):
    return dist.ImproperUniform(support, (), event)


def normal(y):
    mean = pyro.sample("mean", flat(constraints.real))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mean, 2.0), obs=y)


def assert_is_posterior(draws):
    """Of the mean under a flat prior: N(ȳ, σ²/n)."""
    assert_mean(draws, float(Y.mean()))
    assert_mean((draws - Y.mean()) ** 2, 4 / len(Y))


def test_draws_have_the_known_distribution():
    mcmc = MCMC(OHMC(normal), 100, 200, num_chains=32, disable_progbar=True)
    mcmc.run(Y)
    assert_is_posterior(mcmc.get_samples(group_by_chain=True)["mean"])
    assert mcmc.to_inferencedata(posterior_predictive=True).posterior_predictive["y"].shape == (32, 100, 6)
    few = {"mean": mcmc.get_samples()["mean"][:4]}
    for parallel in (False, True):
        assert Predictive(poutine.uncondition(normal), few, parallel=parallel)(Y)["y"].shape == (4, 6)
    with pytest.raises(ValueError, match=r"prior=5: \['mean'\] cannot be drawn"):
        mcmc.to_inferencedata(prior=5)


def test_smc_from_modes_warns_of_the_evidence():
    smc = SMC(OHMC(normal), 1024, init="modes", disable_progbar=True)
    with pytest.warns(UserWarning, match=r"prior of \['mean'\] is improper, so that log_evidence has no meaning"):
        smc.run(Y)
    assert_is_posterior(smc.get_samples()["mean"])


class Power(TorchDistribution):
    """A distribution that a user has written for its density."""

    arg_constraints = {}  # noqa: RUF012  torch's own convention
    support = constraints.interval(2.0, 3.0)

    def log_prob(self, value):
        return value.log()


SITES = {
    "real": flat(constraints.real, 3),
    "positive": flat(constraints.positive),
    "interval": flat(constraints.interval(torch.tensor(1.0), torch.tensor(4.0))),
    "simplex": flat(constraints.simplex, 3),
    "ordered": flat(constraints.ordered_vector, 3),
    "cholesky": flat(constraints.corr_cholesky, 3, 3),
    "stiefel": flat(manifolds.stiefel, 4, 2),
    "sphere": flat(constraints.sphere, 3),
    "rotation": flat(manifolds.special_orthogonal, 3, 3),
    "masked": flat(constraints.positive).mask(torch.tensor(True)),
    "independent": flat(constraints.positive).expand([2]).to_event(1),
    "without sample": Power(),
}


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("strategy", ["init_to_uniform", "init_to_sample", "init_to_median", "init_to_feasible"])
def test_starts_are_in_the_support(name, strategy):
    def model():
        with pyro.plate("plate", 2):
            pyro.sample("x", SITES[name])

    target = target_from_model(model, init_strategy=getattr(strategies, strategy))
    draws = [target.draw()["x"] for _ in range(3)]
    values = target.values({"x": torch.stack(draws)})["x"]
    assert SITES[name].support.check(values).all()
    if strategy in ("init_to_uniform", "init_to_sample"):  # others are the same each time for vectors, as in Pyro
        assert not torch.equal(values[0], values[1])


GUIDES = [AutoNormal, AutoMultivariateNormal, AutoDelta, AutoStiefelLowRankMultivariateNormal]


@pytest.mark.filterwarnings("ignore:SVI falls back:UserWarning")
@pytest.mark.parametrize("kind", GUIDES)
def test_guides_begin_in_the_support(kind):
    def model(y):
        scale = pyro.sample("scale", flat(constraints.positive).expand([2]).to_event(1))
        pyro.sample("y", dist.Normal(0.0, scale[..., :1] + scale[..., 1:]).expand([6]).to_event(1), obs=y)

    guide = kind(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    svi.step(Y)
    assert (guide.median(Y)["scale"] > 0).all()
