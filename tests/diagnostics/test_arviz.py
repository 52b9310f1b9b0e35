"""Runs exported to ArviZ."""

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch
from pyro import poutine
from pyro.infer import NUTS, Predictive

from problems.monte_carlo import assert_mean
from pyro_manifold.density import Program
from pyro_manifold.diagnostics import pointwise_log_likelihood, to_inferencedata
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from tests.diagnostics.either_arviz import elpd, groups
from tests.infer.models import concentrated

DATA = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.8, 0.1], [1.1, -0.1, 0.0], [0.7, 0.3, 0.2]])


def directions(y):
    """Rows of y are s·u plus noise for an unknown unit vector u and scale s."""
    u = pyro.sample("u", StiefelUniform(3, 1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(scale[..., None] * u[..., 0], 0.3).to_event(1), obs=y)


def run(kernel, *args, mcmc_class=MCMC, **options):
    mcmc = mcmc_class(kernel, num_samples=40, warmup_steps=40, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


STATISTICS = {"acceptance_rate", "diverging", "energy", "step_size", "n_steps", "lp", "orthogonality_error"}


long = pytest.mark.long
PROCESSES = {"num_chains": 2, "mp_context": "fork"}
WAYS_TO_RUN = [
    pytest.param(OHMC, MCMC, {"num_chains": 3}, id="vectorised"),
    pytest.param(GHMC, MCMC, {"num_chains": 3}, id="vectorised GHMC"),
    pytest.param(OHMC, MCMC, {"num_chains": 2, "chain_method": "sequential"}, id="sequential", marks=long),
    pytest.param(OHMC, MCMC, {**PROCESSES, "chain_method": "parallel"}, id="parallel", marks=long),
    pytest.param(GHMC, pyro.infer.MCMC, {}, id="Pyro"),
    pytest.param(OHMC, pyro.infer.MCMC, PROCESSES, id="Pyro, two processes", marks=long),
]


@pytest.fixture(scope="module")
def finished():
    """A run of four chains, of which the tests export other groups."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    return run(OHMC(directions), DATA, num_chains=4)


@pytest.mark.parametrize(("kernel", "mcmc_class", "options"), WAYS_TO_RUN)
def test_all_groups_for_every_way_to_run(kernel, mcmc_class, options, monkeypatch):
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 8)
    mcmc = run(kernel(directions), DATA, mcmc_class=mcmc_class, **options)
    chains = options.get("num_chains", 1)
    idata = to_inferencedata(mcmc)
    assert idata.posterior["u"].shape == (chains, 40, 3, 1)
    assert set(idata.sample_stats.data_vars) >= STATISTICS
    assert all(value.shape == (chains, 40) for value in idata.sample_stats.data_vars.values())
    assert idata.observed_data["y"].shape == (4, 3)
    assert set(idata.log_likelihood.data_vars) == {"y"}
    assert idata.log_likelihood["y"].shape == (chains, 40, 4)


def test_values_are_those_of_the_model(finished):
    idata = finished.to_inferencedata()
    samples = finished.get_samples(group_by_chain=True)
    mean = samples["scale"][..., None] * samples["u"][..., 0]
    expected = dist.Normal(mean[:, :, None], 0.3).log_prob(DATA).sum(-1)
    np.testing.assert_allclose(idata.log_likelihood["y"].values, expected.numpy())
    # lp is in unconstrained space: the Jacobian of exp is the scale itself.
    scale = samples["scale"]
    lp = expected.sum(-1) + dist.LogNormal(0.0, 1.0).log_prob(scale) + scale.log()
    difference = idata.sample_stats["lp"].values - lp.numpy()
    np.testing.assert_allclose(difference, difference[0, 0] * np.ones_like(difference), atol=1e-8)
    kinetic = idata.sample_stats["energy"].values + idata.sample_stats["lp"].values
    assert (kinetic >= 0).all()


@pytest.mark.long
def test_kinetic_energy_has_its_known_mean():
    """E(energy + lp) is half the degrees of freedom: 5 of V(4, 2), in equilibrium and for small steps."""
    mcmc = run(OHMC(concentrated, step_size=0.05, num_steps=20, adapt_step_size=False), num_chains=200)
    statistics = mcmc.to_inferencedata().sample_stats
    kinetic = (statistics["energy"] + statistics["lp"]).values
    assert_mean(torch.as_tensor(kinetic), 5 / 2)


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # ArviZ's call of Matplotlib
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # four rows of data are all influential
def test_arviz_reads_it(finished, tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    dims = {"u": ["axis", "column"], "y": ["row", "axis"]}
    idata = finished.to_inferencedata(
        dims=dims, coords={"axis": ["x", "y", "z"]}, constant_data={"noise": np.array(0.3)}
    )
    assert arviz.summary(idata, var_names=["u"]).index[0] == "u[x, 0]"
    arviz.plot_trace(idata, var_names=["scale"])
    arviz.plot_energy(idata)
    assert np.isfinite(elpd(idata))
    idata.to_netcdf(str(tmp_path / "run.nc"))
    back = arviz.from_netcdf(str(tmp_path / "run.nc"))
    np.testing.assert_array_equal(back.posterior["u"], idata.posterior["u"])
    np.testing.assert_array_equal(back.sample_stats["diverging"], idata.sample_stats["diverging"])
    assert back.constant_data["noise"].item() == 0.3


def test_posterior_predictive_draws_of_pyro(finished):
    predictive = Predictive(lambda: directions_without_data(4), finished.get_samples())()
    idata = finished.to_inferencedata(posterior_predictive={"y": predictive["y"]})
    expected = predictive["y"].reshape(4, 40, 4, 3).numpy()
    np.testing.assert_array_equal(idata.posterior_predictive["y"], expected)
    with pytest.raises(ValueError, match=r"posterior_predictive\['y'\].*160 draws"):
        finished.to_inferencedata(posterior_predictive={"y": torch.zeros(7, 3)})


def directions_without_data(count):
    u = pyro.sample("u", StiefelUniform(3, 1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", count):
        return pyro.sample("y", dist.Normal(scale[..., None] * u[..., 0], 0.3).to_event(1))


def test_a_bare_potential_has_draws_and_statistics():
    kernel = OHMC(potential_fn=lambda sites: 0.5 * sites["x"].square().sum(), manifolds={})
    idata = run(kernel, initial_params={"x": torch.zeros(2)}).to_inferencedata()
    assert groups(idata) == {"posterior", "sample_stats"}


def regression(x, y):
    """A model without anything of this package."""
    slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    pyro.deterministic("ratio", slope / noise)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(slope * x, noise), obs=y)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # as above
def test_a_run_of_pyro_alone_has_all_its_groups(tmp_path):
    """ArviZ 1 has no converter for Pyro; numbers are those of the run, and of the model's densities."""
    x = torch.linspace(-1, 1, 8)
    y = x + 0.3 * torch.sin(9 * x)
    mcmc = run(NUTS(regression), x, y, mcmc_class=pyro.infer.MCMC)
    mcmc._diagnostics[0]["divergences"] = [3, 7]
    idata = to_inferencedata(mcmc, constant_data={"x": x}, dims={"y": ["row"]})
    draws = mcmc.get_samples(group_by_chain=True)
    for name, value in draws.items():
        np.testing.assert_array_equal(idata.posterior[name], value)
    np.testing.assert_allclose(idata.posterior["ratio"], draws["slope"] / draws["noise"])
    np.testing.assert_array_equal(idata.observed_data["y"], y)
    np.testing.assert_array_equal(idata.constant_data["x"], x)
    expected = dist.Normal(draws["slope"][..., None] * x, draws["noise"][..., None]).log_prob(y)
    np.testing.assert_allclose(idata.log_likelihood["y"], expected)
    assert idata.log_likelihood["y"].dims == ("chain", "draw", "row")
    assert set(idata.sample_stats.data_vars) == {"diverging"}  # Pyro records no other statistic of each draw
    assert np.flatnonzero(idata.sample_stats["diverging"]).tolist() == [3, 7]
    assert np.isfinite(elpd(idata))
    assert "slope" in arviz.summary(idata, var_names=["slope"]).index
    idata.to_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    back = arviz.from_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    np.testing.assert_array_equal(back.posterior["slope"], draws["slope"])


def test_models_that_cannot_be_traced_are_run_draw_by_draw():
    def branching(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        scale = 1.0 if x > 0 else 2.0
        pyro.sample("y", dist.Normal(x, scale), obs=y)

    x = torch.tensor([0.5, -0.5, 1.0, -1.0])
    values = pointwise_log_likelihood(Program(branching, (torch.tensor(0.3),)), {"x": x})["y"]
    expected = dist.Normal(x, torch.where(x > 0, 1.0, 2.0)).log_prob(torch.tensor(0.3))
    assert torch.allclose(values, expected)


def test_branches_that_a_tracer_cannot_see_are_found_by_comparison():
    def branching(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0 if x.tolist() > 0 else 2.0), obs=y)

    x = torch.tensor([0.5, 1.0, -0.5, -1.0])
    values = pointwise_log_likelihood(Program(branching, (torch.tensor(0.3),)), {"x": x})["y"]
    expected = dist.Normal(x, torch.where(x > 0, 1.0, 2.0)).log_prob(torch.tensor(0.3))
    assert torch.allclose(values, expected)


def test_scales_are_left_out_and_factors_are_no_observations():
    def tempered():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("pull", -x)
        with poutine.scale(scale=0.5):
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.3))

    x = torch.tensor([0.5, -0.5])
    found = pointwise_log_likelihood(Program(tempered), {"x": x})
    assert set(found) == {"y"}
    assert torch.allclose(found["y"], dist.Normal(x, 1.0).log_prob(torch.tensor(0.3)))


@pytest.mark.parametrize("way", ["handler", "distribution", "obs_mask"])
def test_masked_observations_have_no_likelihood(way):
    y, mask = torch.tensor([0.5, 100.0, -0.2]), torch.tensor([True, False, True])

    def masked():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        distribution, options = dist.Normal(x, 1.0), {}
        if way == "distribution":
            distribution = distribution.mask(mask)
        if way == "obs_mask":
            options = {"obs_mask": mask}
        with pyro.plate("rows", 3), poutine.mask(mask=mask if way == "handler" else True):
            pyro.sample("y", distribution, obs=y, **options)

    samples = {"x": torch.tensor([0.0, 1.0])}
    if way == "obs_mask":
        samples["y_unobserved"] = torch.zeros(2, 3)
    (values,) = pointwise_log_likelihood(Program(masked), samples).values()
    expected = dist.Normal(samples["x"][:, None], 1.0).log_prob(y) * mask
    assert torch.allclose(values, expected)


SEEN = torch.tensor([[True, False], [True, True], [False, False], [False, True]])


def cells_in_plates(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    with pyro.plate("columns", 2, dim=-1), pyro.plate("rows", 4, dim=-2), poutine.mask(mask=SEEN):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def cells_in_events(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    with pyro.plate("rows", 4):
        pyro.sample("y", dist.Normal(mean, 1.0).expand([4, 2]).mask(SEEN).to_event(1), obs=y)


def rows_of_mixture(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    with pyro.plate("rows", 4), poutine.mask(mask=SEEN[:, 0]):
        z = pyro.sample("z", dist.Bernoulli(0.25))
        pyro.sample("y", dist.Normal(mean + z, 1.0), obs=y[:, 0])


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # a few data are all influential
@pytest.mark.parametrize(
    ("model", "observations"),
    [(cells_in_plates, [0, 2, 3, 7]), (cells_in_events, [0, 1, 3]), (rows_of_mixture, [0, 1])],
)
def test_masked_entries_are_no_observations(model, observations):
    y = torch.randn(4, 2)
    data = run(OHMC(model), y, num_chains=2).to_inferencedata()
    mean = torch.as_tensor(data["posterior"]["mean"].values)[..., None, None]
    cells = dist.Normal(mean, 1.0).log_prob(y) * SEEN
    expected = {
        "cells_in_plates": cells.flatten(2),
        "cells_in_events": cells.sum(-1),
        "rows_of_mixture": (0.75 * cells.exp() + 0.25 * dist.Normal(mean + 1, 1.0).log_prob(y).exp()).log()[..., 0],
    }[model.__name__][..., observations]
    found = data["log_likelihood"]["y"]
    assert torch.allclose(torch.as_tensor(found.values), expected)
    assert found["y_unmasked"].values.tolist() == observations
    assert arviz.loo(data).n_data_points == len(observations)


def test_masked_rows_have_the_labels_of_rows():
    def two_masks(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(mean, 1.0).mask(SEEN[:, 0]), obs=y)
            pyro.sample("z", dist.Normal(mean, 1.0).mask(SEEN[:, 1]), obs=y)
            pyro.sample("whole", dist.Normal(mean, 1.0), obs=y)
            pyro.sample("hidden", dist.Normal(mean, 1.0).mask(False), obs=y)

    dims, coords = {name: ["row"] for name in ("y", "z", "whole")}, {"row": ["a", "b", "c", "d"]}
    data = run(OHMC(two_masks), torch.randn(4)).to_inferencedata(dims=dims, coords=coords)["log_likelihood"]
    assert data["y"]["y_unmasked"].values.tolist() == ["a", "b"]
    assert data["z"]["z_unmasked"].values.tolist() == ["b", "d"]
    assert data["whole"]["row"].values.tolist() == ["a", "b", "c", "d"]
    assert "hidden" not in data
    assert not np.isnan(data["y"].values).any()


def test_terms_without_data_are_named():
    def with_factor(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("double", 2 * x)
        pyro.factor("constraint", -x)
        with poutine.mask(mask=False):
            pyro.factor("switched off", x)
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    mcmc = run(OHMC(with_factor), torch.tensor(0.3))
    with pytest.warns(UserWarning, match=r"leaves out \['constraint'\], terms of `pyro\.factor`"):
        mcmc.to_inferencedata()
    mcmc.to_inferencedata(log_likelihood=False)


def test_names_that_do_not_fit_are_refused(finished):
    for options, sentence in [
        ({"dims": {"V": ["a"]}}, r"dims names 'V'.*'u'"),
        ({"dims": {"u": ["a", "b", "c"]}}, r"dims\['u'\].*up to 2"),
        ({"dims": {"u": ["chain", "b"]}}, r"dims\['u'\].*without chain"),
        ({"dims": "u"}, r"dims='u', expected a dictionary"),
        ({"coords": {"axis": ["x", "y", "z"]}}, r"coords names the dimensions \['axis'\]"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            finished.to_inferencedata(**options)


def test_sites_that_are_called_as_dimensions_keep_their_draws():
    def model():
        for name in ("chain", "row", "x_dim_0", "row_site"):
            pyro.sample(name, dist.Normal(0.0, 1.0))
        pyro.sample("draw", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    mcmc = run(OHMC(model), num_chains=2)
    with pytest.warns(UserWarning, match="Site '(chain|draw|row|x_dim_0)' is exported as '.*_site_?', since"):
        posterior = mcmc.to_inferencedata(dims={"z": ["row"]})["posterior"]
    draws = mcmc.get_samples(group_by_chain=True)
    others = {"chain": "chain_site", "draw": "draw_site", "row": "row_site_", "x_dim_0": "x_dim_0_site"}
    assert set(posterior.data_vars) == {others.get(name, name) for name in draws}
    for name, value in draws.items():
        np.testing.assert_array_equal(posterior[others.get(name, name)].values, value)
    assert posterior["z"].dims == ("chain", "draw", "row")


def test_before_a_run_there_is_nothing_to_export():
    with pytest.raises(ValueError, match=r"call mcmc.run"):
        to_inferencedata(MCMC(OHMC(concentrated), 10))
