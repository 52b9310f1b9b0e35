"""All groups of ArviZ in one call, and what loo and compare compute from them, against exact values."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.utils.data import DataLoader, TensorDataset

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, OSGHMC, SMC, Predictive
from tests.diagnostics.either_arviz import compare, elpd, groups

ROWS = 25


def line(x, y, slope=True):
    """A regression with known noise, whose leave-one-out predictions are known."""
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    a = pyro.sample("a", dist.Normal(0.0, 2.0)) if slope else torch.zeros(())
    mean = pyro.deterministic("mean", level[..., None] + a[..., None] * x)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.8), obs=y)


def exact_loo(x, y, slope):
    """The log density of each observation given all others, from the normal distribution of all of them."""
    design = torch.stack([torch.ones_like(x), x], -1)[:, : 2 if slope else 1]
    covariance = 4.0 * design @ design.mT + 0.8**2 * torch.eye(len(x))
    precision = torch.linalg.inv(covariance)
    mean, variance = y - (precision @ y) / precision.diagonal(), 1 / precision.diagonal()
    return dist.Normal(mean, variance.sqrt()).log_prob(y)


def sample(kernel, *args, chains=4, draws=100, **options):
    mcmc = MCMC(kernel, draws, 100, num_chains=chains, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-1.0, 1.0, ROWS, dtype=torch.float64)
    return x, 0.5 + x + 0.8 * torch.randn(ROWS, generator=generator, dtype=torch.float64)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pandas, in ArviZ
@pytest.mark.filterwarnings("ignore:Estimated shape")  # the largest of 25, from 500 draws; the mean is compared
def test_loo_and_compare_are_those_of_the_known_distribution(data):
    """Each of 16 groups of chains gives an estimate; their mean is the exact value."""
    x, y = data
    exports = {
        slope: sample(OHMC(line), x, y, slope, chains=32, draws=250).to_inferencedata() for slope in (True, False)
    }
    exact = {slope: exact_loo(x, y, slope) for slope in exports}
    estimates = {
        slope: [elpd(idata.isel(chain=slice(2 * k, 2 * k + 2))) for k in range(16)] for slope, idata in exports.items()
    }
    for slope, values in estimates.items():
        assert_mean(torch.tensor(values), float(exact[slope].sum()))
    table = compare({str(slope): idata for slope, idata in exports.items()})
    difference = exact[True] - exact[False]
    assert table.index[0] == str(bool(difference.sum() > 0))
    spread = np.std(np.subtract(estimates[True], estimates[False]))
    assert float(table.elpd_diff.iloc[1]) == pytest.approx(abs(float(difference.sum())), abs=float(4 * spread))
    assert float(table.dse.iloc[1]) == pytest.approx(float(difference.std(correction=0)) * ROWS**0.5, rel=0.1)


@pytest.mark.long
def test_all_groups_in_one_call(data):
    x, y = data
    mcmc = sample(OHMC(line), x, y, chains=8)
    labels = {"dims": {"y": ["row"], "mean": ["row"]}, "coords": {"row": x.tolist()}}
    idata = mcmc.to_inferencedata(prior=2000, posterior_predictive=True, **labels)
    expected = {"posterior", "posterior_predictive", "log_likelihood", "sample_stats", "prior", "prior_predictive"}
    assert groups(idata) == expected | {"observed_data"}
    assert idata.prior["mean"].dims == idata.prior_predictive["y"].dims == ("chain", "draw", "row")
    assert set(idata.prior.data_vars) == {"level", "a", "mean"}
    assert idata.prior["level"].shape == (1, 2000)
    # Known moments: of the prior and its predictions, and of predictions given the data.
    prior = {name: torch.as_tensor(idata.prior[name].values[0]) for name in ("level", "a", "mean")}
    assert_mean(prior["level"].square(), 4.0)
    torch.testing.assert_close(prior["mean"], prior["level"][:, None] + prior["a"][:, None] * x)
    assert_mean(torch.as_tensor(idata.prior_predictive["y"].values[0, :, 0]).square(), 4.0 * (1 + 1) + 0.64)
    predicted = torch.as_tensor(idata.posterior_predictive["y"].values)
    mean = torch.as_tensor(idata.posterior["mean"].values)
    assert_mean((predicted - mean)[..., 3].square(), 0.64)
    design = torch.stack([torch.ones_like(x), x], -1)
    exact = design @ torch.linalg.solve(design.mT @ design / 0.64 + torch.eye(2) / 4, design.mT @ y / 0.64)
    assert_mean(predicted[..., 3], float(exact[3]))


def test_plates_matrices_and_discrete_sites():
    """Groups in a plate, a matrix, a discrete site that is summed out: predictions have both of its values."""

    def groups(index, y):
        U = pyro.sample("U", StiefelUniform(3, 1))
        with pyro.plate("groups", 2):
            shift = pyro.sample("shift", dist.Normal(0.0, 0.1))
        with pyro.plate("rows", len(index)):
            z = pyro.sample("z", dist.Bernoulli(0.25), infer={"enumerate": "parallel"})
            mean = 10.0 * z[..., None] + shift[..., index, None] + U[..., 0]
            pyro.sample("y", dist.Normal(mean, 0.1).to_event(1), obs=y)

    index = torch.tensor([0, 1, 0, 1, 1])
    y = 10.0 * torch.tensor([0.0, 1, 0, 0, 1])[:, None] + torch.tensor([1.0, 0, 0]) + 0.1 * torch.randn(5, 3)
    mcmc = sample(OHMC(groups), index, y, chains=8)
    idata = mcmc.to_inferencedata(prior=1600, posterior_predictive=True)
    assert idata.prior["U"].shape == (1, 1600, 3, 1)
    assert idata.prior["shift"].shape == (1, 1600, 2)
    for group, shape in (("prior_predictive", (1, 1600)), ("posterior_predictive", (8, 100))):
        values = idata[group]["y"].values
        assert values.shape == (*shape, 5, 3)
        assert_mean(torch.as_tensor(values[..., 2, 1] > 5.0).double(), 0.25)
    assert idata.log_likelihood["y"].shape == (8, 100, 5)


@pytest.mark.long
def test_models_that_are_not_written_for_all_draws_at_once():
    def left(y):
        U = pyro.sample("U", StiefelUniform(3, 2))
        scales = pyro.sample("scales", dist.LogNormal(0.0, 0.1).expand([2]).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), U * scales, torch.ones(3)), obs=y)

    mcmc = sample(OHMC(left, step_size=0.05, num_steps=3, adapt_step_size=False), torch.randn(4, 3), draws=5)
    idata = mcmc.to_inferencedata(prior=10, posterior_predictive=True)
    assert idata.prior["U"].shape == (1, 10, 3, 2)
    assert idata.posterior_predictive["y"].shape == (4, 5, 4, 3)


def test_a_hidden_markov_chain_has_predictions_but_no_likelihood_of_each_observation():
    def chain(y):
        mean = pyro.sample("mean", dist.Normal(5.0, 0.5))
        state = 0
        for t in pyro.markov(range(len(y))):
            stay = torch.tensor([0.9, 0.1])[state]
            state = pyro.sample(f"state_{t}", dist.Bernoulli(1 - stay), infer={"enumerate": "parallel"}).long()
            pyro.sample(f"y_{t}", dist.Normal(mean * state, 0.1), obs=y[t])

    mcmc = sample(OHMC(chain), torch.tensor([0.0, 5.0, 5.0]), chains=8)
    with pytest.warns(UserWarning, match=r"log_likelihood of \['y_0', 'y_1', 'y_2'\] is left out"):
        idata = mcmc.to_inferencedata(posterior_predictive=True)
    assert "log_likelihood" not in groups(idata)
    jumps = torch.as_tensor(idata.posterior_predictive["y_0"].values > 2.0).double()
    assert_mean(jumps, 0.1)
    last = torch.as_tensor(idata.posterior_predictive["y_2"].values > 2.0).double()
    assert_mean(last, 0.244)  # of a chain that changes its state with probabilities 0.1 and 0.9: 0.1, 0.18, 0.244


def test_particles(data):
    smc = SMC(OHMC(line), num_particles=64, num_runs=2, disable_progbar=True)
    smc.run(*data)
    idata = smc.to_inferencedata(prior=30, posterior_predictive=True)
    assert idata.posterior_predictive["y"].shape == (2, 64, ROWS)
    assert idata.prior_predictive["y"].shape == (1, 30, ROWS)


def test_given_draws_have_the_shapes_of_the_sites(data):
    x, y = data
    mcmc = sample(OHMC(line), x, y, draws=20)
    prior = Predictive(poutine.uncondition(line), num_samples=30)(x, y)
    assert prior["level"].shape == (30, 1)  # Pyro's, with a dimension for the plate
    units = mcmc.get_samples()["level"][:, None].expand(80, 2)
    idata = mcmc.to_inferencedata(prior=prior, log_likelihood={"group": units})
    assert idata.prior["level"].shape == (1, 30)
    assert idata.prior_predictive["y"].shape == (1, 30, ROWS)
    assert idata.log_likelihood["group"].shape == (4, 20, 2)
    for options, sentence in [
        ({"prior": {"level": torch.ones(3, 4)}}, r"prior\['level'\] has shape \(3, 4\), expected \(3,\)"),
        ({"prior": {"level": torch.ones(3), "a": torch.ones(4)}}, r"\{'level': 3, 'a': 4\} draws"),
        ({"prior": 0}, "prior=0, expected a positive number"),
        ({"prior": 2.5}, r"prior=2.5, expected an integer"),
        ({"log_likelihood": {"y": torch.ones(7, 12)}}, r"log_likelihood\['y'\] has shape \(7, 12\), expected 80"),
        ({"posterior_predictive": 3}, "posterior_predictive=3, expected draws"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            mcmc.to_inferencedata(**options)


def test_what_cannot_be_drawn():
    x, y = torch.ones(6), torch.zeros(6)

    def in_parts(x, y, total=6):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", total, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    def draws_its_part():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6, subsample_size=3) as rows:
            pyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])

    kernel = OSGHMC(draws_its_part, step_size=0.01, num_steps=2)
    mcmc = sample(kernel, draws=5)
    with pytest.raises(ValueError, match=r"posterior_predictive=True: \['y'\] are in a plate that takes another"):
        mcmc.to_inferencedata(posterior_predictive=True, log_likelihood=False)
    mcmc = MCMC(OSGHMC(in_parts, step_size=0.01, num_steps=2), 5, 5, num_chains=2, disable_progbar=True)
    mcmc.run(data_loader=DataLoader(TensorDataset(x, y), batch_size=3))
    without = {"log_likelihood": False, "deterministic": False}
    with pytest.raises(ValueError, match=r"prior=10: the model took its arguments from data_loader"):
        mcmc.to_inferencedata(prior=10, **without)
    given = Predictive(poutine.uncondition(in_parts), mcmc.get_samples())(x, y)
    idata = mcmc.to_inferencedata(
        posterior_predictive=given, prior={"a": torch.ones(3), "y": torch.ones(3, 6)}, **without
    )
    assert idata.posterior_predictive["y"].shape == (2, 5, 6)
    assert list(idata.prior_predictive.data_vars) == ["y"]
    bare = OHMC(potential_fn=lambda sites: 0.5 * sites["x"].square().sum(), manifolds={})
    mcmc = sample(bare, draws=5, initial_params={"x": torch.zeros(4, 2)})
    with pytest.raises(ValueError, match=r"prior=10: there is no model, as with a potential_fn"):
        mcmc.to_inferencedata(prior=10)


def test_sites_that_are_not_kept_and_factors(data):
    mcmc = sample(OHMC(line), *data, draws=5, save_params=["level"])
    with pytest.raises(ValueError, match=r"no draws of \['a'\], which save_params leaves out"):
        mcmc.to_inferencedata(posterior_predictive=True, log_likelihood=False, deterministic=False)

    def pulled():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("pull", -a.square())

    mcmc = sample(OHMC(pulled), draws=5)
    with pytest.warns(UserWarning, match=r"without the pyro.factor \['pull'\]"):
        idata = mcmc.to_inferencedata(prior=10)
    assert idata.prior["a"].shape == (1, 10)
    with pytest.raises(ValueError, match="the model has no observed site"):
        mcmc.to_inferencedata(posterior_predictive=True)
