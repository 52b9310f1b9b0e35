"""Values of deterministic sites: those that the model computes from each draw."""

import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch
from pyro import poutine
from pyro.infer import NUTS
from pyro.infer.reparam import LocScaleReparam

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import deterministic_values, observed_values, pointwise_log_likelihood, to_inferencedata
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

Y = torch.tensor([0.4, -0.3, 1.0])


def loadings(y=Y):
    U = pyro.sample("U", StiefelUniform(3, 2))
    scales = pyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    covariance = pyro.deterministic("covariance", (U * scales**2) @ U.mT)
    pyro.deterministic("large", scales > 1)
    with pyro.plate("rows", 3):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        mean = pyro.deterministic("mean", covariance.diagonal() + shift, event_dim=0)
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def expected(samples):
    U, scales = samples["U"], samples["scales"]
    covariance = (U * scales[..., None, :] ** 2) @ U.mT
    mean = covariance.diagonal(dim1=-2, dim2=-1) + samples["shift"]
    return {"covariance": covariance, "large": scales > 1, "mean": mean}


def check(samples):
    for name, value in expected(samples).items():
        torch.testing.assert_close(samples[name], value)


def run(kernel, mcmc_class=MCMC, num_samples=8, **options):
    mcmc = mcmc_class(kernel, num_samples=num_samples, warmup_steps=8, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


WAYS_TO_RUN = [
    pytest.param(OHMC, MCMC, {"num_chains": 3}, id="vectorised"),
    pytest.param(OHMC, MCMC, {"num_chains": 3, "num_samples": 24, "thinning": 3}, id="thinned", marks=pytest.mark.long),
    pytest.param(OHMC, MCMC, {"num_chains": 2, "chain_method": "sequential"}, id="sequential", marks=pytest.mark.long),
    pytest.param(NUTS, pyro.infer.MCMC, {}, id="Pyro", marks=pytest.mark.long),  # see test_arviz.py
]


@pytest.mark.parametrize(("kernel", "mcmc_class", "options"), WAYS_TO_RUN)
def test_arviz_gets_them_whichever_way_chains_are_run(kernel, mcmc_class, options):
    mcmc = run(kernel(loadings), mcmc_class, **options)
    idata = to_inferencedata(mcmc, dims={"covariance": ["row", "column"]})
    assert idata.posterior["covariance"].dims == ("chain", "draw", "row", "column")
    assert idata.posterior["mean"].shape == (options.get("num_chains", 1), 8, 3)
    check({name: torch.as_tensor(value.values) for name, value in idata.posterior.data_vars.items()})
    assert set(to_inferencedata(mcmc, deterministic=False).posterior.data_vars) == {"U", "scales", "shift"}


def test_get_samples_has_them_when_asked():
    mcmc = run(OHMC(loadings), num_chains=2)
    assert set(mcmc.get_samples()) == {"U", "scales", "shift"}  # as in Pyro
    for options, front in [({}, (16,)), ({"group_by_chain": True}, (2, 8)), ({"num_samples": 5}, (5,))]:
        samples = mcmc.get_samples(**options, deterministic=True)
        assert samples["covariance"].shape == (*front, 3, 3)
        assert samples["large"].dtype == torch.bool
        check(samples)


def test_the_model_is_not_run_for_every_draw():
    """Sites that are not floating-point are included."""
    runs = []

    def model():
        runs.append(1)
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("positive", x > 0)
        pyro.deterministic("floor", x.floor().long())

    x = torch.randn(600)
    found = deterministic_values(Program(model), {"x": x})
    assert torch.equal(found["floor"], x.floor().long())
    assert len(runs) < 40


def test_more_draws_than_one_batch_has_and_models_that_cannot_be_traced():
    def branching():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("size", x if x > 0 else -2 * x)

    x = torch.randn(600)
    torch.testing.assert_close(
        deterministic_values(Program(branching), {"x": x})["size"], torch.where(x > 0, x, -2 * x)
    )


def test_those_that_depend_on_summed_out_sites_have_no_value():
    """Sites are found even if only two of three values differ, or two places."""

    def mixture():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("square", x**2)
        with pyro.plate("rows", 3):
            kind = pyro.sample("kind", dist.Categorical(torch.ones(3)), infer={"enumerate": "parallel"})
            pyro.deterministic("middle", torch.where(kind == 1, 1.0, 0.0))
            pyro.sample("y", dist.Normal(x * kind, 1.0), obs=Y)
        pyro.deterministic("unequal", (kind[..., :1] != kind[..., 1:]).any(-1))

    mcmc = run(OHMC(mixture), num_chains=2)
    sentence = r"sites \['middle', 'unequal'\] are left out, since they depend on \['kind'\], which were summed out"
    with pytest.warns(UserWarning, match=sentence):
        samples = mcmc.get_samples(deterministic=True)
    assert set(samples) == {"x", "square"}
    torch.testing.assert_close(samples["square"], samples["x"] ** 2)
    with pytest.warns(UserWarning, match=sentence):
        assert set(mcmc.to_inferencedata().posterior.data_vars) == {"x", "square"}


@pytest.mark.long
def test_sites_that_were_not_kept_are_named():
    mcmc = run(OHMC(loadings), num_chains=2, save_params=["U", "shift"])
    with pytest.raises(ValueError, match=r"'covariance'.*functions of all sites.*no draws of \['scales'\]"):
        mcmc.get_samples(deterministic=True)
    with pytest.warns(UserWarning, match=r"no draws of \['scales'\].*deterministic=False avoids this"):
        idata = mcmc.to_inferencedata(log_likelihood=False)
    assert set(idata.posterior.data_vars) == {"U", "shift"}


def test_without_a_model_there_are_none():
    kernel = OHMC(potential_fn=lambda sites: 0.5 * sites["x"].square().sum(), manifolds={})
    mcmc = run(kernel, initial_params={"x": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"needs a model.*potential_fn"):
        mcmc.get_samples(deterministic=True)


def test_a_branch_that_a_tracer_cannot_see_is_found_in_the_tails():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("d", x * 2 if x.detach().numpy() > 1.5 else x)

    x = torch.cat([torch.zeros(1), torch.randn(999)])
    found = deterministic_values(Program(model), {"x": x})["d"]
    assert torch.equal(found, torch.where(x > 1.5, 2 * x, x))


def test_a_site_that_depends_on_two_places_of_a_plate_has_no_value():
    def model():
        with pyro.plate("rows", 30):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        for i in range(29):
            pyro.deterministic(f"same_{i}", (z[..., i] == z[..., i + 1]) * 1.0)
        pyro.deterministic("twice", 2 * pyro.sample("x", dist.Normal(0.0, 1.0)))

    with pytest.warns(UserWarning, match="depend on"):
        assert set(deterministic_values(Program(model), {"x": torch.randn(5)})) == {"twice"}


ERRORS = torch.tensor([15.0, 10.0, 16.0])


def schools(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 3):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, ERRORS), obs=y)


def non_centred(samples):
    return samples["mu"][..., None] + samples["tau"][..., None] * samples["theta_decentered"]


def computed(z):
    """Handler that computes a site from the others, and masks it."""

    class Computed(poutine.messenger.Messenger):
        def _pyro_sample(self, msg):
            if msg["name"] == "theta":
                msg["value"], msg["is_observed"] = z(msg["fn"]), True
                msg["fn"] = msg["fn"].mask(False)

    return Computed()


def test_sites_moved_by_a_handler_are_no_data():
    model = poutine.reparam(schools, config={"theta": LocScaleReparam(0.0)})
    mcmc = MCMC(OHMC(model), num_samples=8, warmup_steps=8, num_chains=2, disable_progbar=True)
    mcmc.run(torch.tensor([28.0, 8.0, -3.0]))
    idata = mcmc.to_inferencedata(prior=3)
    assert set(idata.observed_data.data_vars) == set(idata.log_likelihood.data_vars) == {"y"}
    samples = mcmc.get_samples(deterministic=True)
    torch.testing.assert_close(samples["theta"], non_centred(samples))
    torch.testing.assert_close(torch.as_tensor(idata.posterior["theta"].values).flatten(0, 1), samples["theta"])
    likelihood = dist.Normal(samples["theta"], ERRORS).log_prob(torch.tensor([28.0, 8.0, -3.0]))
    torch.testing.assert_close(torch.as_tensor(idata.log_likelihood["y"].values).flatten(0, 1), likelihood)
    assert set(idata.prior_predictive.data_vars) == {"y"}


HANDLERS = [computed(lambda fn: fn.mean), poutine.reparam(config={"theta": LocScaleReparam(0.5)})]


@pytest.mark.parametrize("handler", HANDLERS, ids=["masked", "reparam"])
def test_any_handler_may_compute_a_site(handler):
    samples = {"mu": torch.tensor([0.0, 1.0]), "tau": torch.tensor([1.0, 2.0]), "theta_decentered": torch.zeros(2, 3)}
    model, y = handler(schools), torch.zeros(3)
    assert set(observed_values(Program(model, (y,)), samples)) == {"y"}
    assert set(pointwise_log_likelihood(Program(model, (y,)), samples)) == {"y"}
    assert deterministic_values(Program(model, (y,)), samples)["theta"].shape == (2, 3)


def test_residuals_are_no_data_but_have_a_likelihood():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("residual", dist.Normal(0.0, 2.0), obs=3.0 - x)
        pyro.sample("likelihood", dist.Delta(Y, log_density=-((Y - x) ** 2)), obs=Y)

    samples = {"x": torch.tensor([0.0, 1.0])}
    assert not observed_values(Program(model), samples)
    assert set(deterministic_values(Program(model), samples)) == {"residual"}
    found = pointwise_log_likelihood(Program(model), samples)
    torch.testing.assert_close(found["residual"], dist.Normal(0.0, 2.0).log_prob(torch.tensor([3.0, 2.0])))


WRAPPED = [lambda fn: fn, lambda fn: fn.mask(False), lambda fn: fn.expand([2]).to_event(1)]


@pytest.mark.parametrize("wrapped", WRAPPED, ids=["plain", "masked", "expanded"])
def test_a_latent_point_mass_is_computed(wrapped):
    """Pyro would sample it, from a density that is zero everywhere else."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        square = pyro.sample("square", wrapped(dist.Delta(x**2)))
        pyro.sample("y", dist.Normal(square.sum(), 1.0), obs=torch.tensor(1.0))

    mcmc = run(OHMC(model), num_chains=2)
    samples = mcmc.get_samples(deterministic=True)
    assert set(mcmc.get_samples()) == {"x"}
    for square in samples["square"].reshape(16, -1).unbind(1):
        torch.testing.assert_close(square, samples["x"] ** 2)
