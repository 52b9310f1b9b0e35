"""The log density of the prior in exports, and the sensitivity to the prior that follows from it."""

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Posterior, is_before_1, to_inferencedata
from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.infer import Predictive

ERRORS = torch.tensor([15.0, 10.0, 16.0], dtype=torch.float64)
CONCENTRATION = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)


def schools(y):
    """A hierarchy, with an orthonormal matrix, a site of a component, and one that no component changes."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    pyro.sample("U", MatrixLangevin(CONCENTRATION))
    component = pyro.sample("component", dist.Categorical(torch.ones(3)))
    pyro.sample("of component", dist.Normal(component.to(mu), 1.0))
    with pyro.plate("schools", 3):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, ERRORS), obs=y)


def exported(model, draws, *args, **options):
    """An export of draws from the prior, in two chains."""
    by_chain = {name: value.reshape(2, -1, *value.shape[1:]) for name, value in draws.items()}
    return to_inferencedata(Posterior(by_chain, program=Program(model, args)), log_prior=True, **options)


def test_each_site_has_the_density_of_its_prior():
    pyro.set_rng_seed(0)
    y = torch.zeros(3)
    sites = ("mu", "tau", "U", "of component", "theta")
    draws = Predictive(schools, num_samples=40, return_sites=sites)(y)
    draws = {name: value.squeeze() for name, value in draws.items()}  # Pyro's have dimensions of size 1
    with pytest.warns(UserWarning, match=r"leaves out \['of component'\], whose priors depend on \['component'\]"):
        idata = exported(schools, draws, y, dims={"theta": ["school"]}, coords={"school": ["A", "B", "C"]})
    found, posterior = idata.log_prior, {name: idata.posterior[name].values for name in draws}
    assert set(found.data_vars) == {"mu", "tau", "U", "theta"}
    assert found["theta"].dims == ("chain", "draw", "school")
    assert list(found["school"].values) == ["A", "B", "C"]
    mu, tau = posterior["mu"][..., None], posterior["tau"][..., None]
    expected = {
        "mu": stats.norm(0, 5).logpdf(posterior["mu"]),
        "tau": stats.halfcauchy(scale=5).logpdf(posterior["tau"]),
        "theta": stats.norm(mu, tau).logpdf(posterior["theta"]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].values, values, rtol=1e-10)
    differences = found["U"].values - (CONCENTRATION.numpy() * posterior["U"]).sum((-2, -1))
    np.testing.assert_allclose(differences, differences[0, 0], rtol=1e-10)  # minus the log of the normalising constant


def mixtures(y):
    """Sites that depend on discrete ones in ways that single values do not show."""
    z = pyro.sample("z", dist.Categorical(torch.ones(3)))
    first, second = (pyro.sample(name, dist.Bernoulli(0.3)) for name in ("first", "second"))
    pyro.sample("by the middle value", dist.Normal(torch.tensor([0.0, 5.0, 0.0])[z], 1.0))
    pyro.sample("by a difference", dist.Normal(5 * (first - second), 1.0))
    with pyro.plate("groups", 4):
        of_groups = pyro.sample("of groups", dist.Bernoulli(0.5))
    pyro.sample("by a contrast", dist.Normal(of_groups[..., 0] - of_groups[..., 1], 1.0))
    pyro.sample("alone", dist.Normal(0.0, 1.0))


def test_sites_of_mixtures_are_found_by_all_values():
    names = ("by the middle value", "by a difference", "by a contrast", "alone")
    with pytest.warns(UserWarning, match="leaves out .*, whose priors depend on"):
        idata = exported(mixtures, {name: torch.zeros(8) for name in names}, None, log_likelihood=False)
    assert set(idata.log_prior.data_vars) == {"alone"}


def conjugate(y):
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x, 2.0), obs=y)


def test_draws_weighted_by_a_power_of_the_prior_have_the_posterior_of_that_prior():
    pyro.set_rng_seed(0)
    y = torch.tensor([2.0, 3.0, 4.0])
    precision = 1 + len(y) / 4
    draws = y.sum() / 4 / precision + torch.randn(20_000) / precision**0.5
    idata = exported(conjugate, {"x": draws}, y)
    x, log_prior = idata.posterior["x"].values.flatten(), idata.log_prior["x"].values.flatten()
    weights = np.exp(0.5 * log_prior)  # the prior to the power 1.5 is normal with precision 1.5
    weights /= weights.sum()
    mean = (weights * x).sum()
    error = np.sqrt((weights**2 * (x - mean) ** 2).sum())
    assert abs(mean - float(y.sum() / 4 / (precision + 0.5))) < 4 * error
    sensitivity = arviz.psens(idata)["x"] if is_before_1() else arviz.psense_summary(idata).loc["x", "prior"]
    assert float(sensitivity) > 0.05  # the prior pulls the mean from 3 to 1.3: ArviZ calls this informative


def test_what_cannot_be_computed_is_left_out_with_its_reason():
    draws = {"mu": torch.zeros(4)}
    with pytest.warns(UserWarning, match=r"log_prior is left out: there are no draws of \['tau', 'U'"):
        idata = exported(schools, draws, torch.zeros(3), log_likelihood=False, deterministic=False)
    assert "log_prior" not in set(idata)
    with pytest.raises(ValueError, match="log_prior='U', expected True or False"):
        to_inferencedata({"x": torch.zeros(1, 4)}, log_prior="U")
    with pytest.raises(ValueError, match="log_prior=True needs a model"):
        to_inferencedata({"x": torch.zeros(1, 4)}, log_prior=True)
