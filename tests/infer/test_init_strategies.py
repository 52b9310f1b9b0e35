"""Chains that begin at draws of a guide, or at given values."""

import pickle

import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, init_to_value

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, init_to_draws, init_to_guide
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal


def components(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        factor = U * scales[..., None, :]
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), factor, noise**2 * torch.ones(4)), obs=y)


DATA = torch.randn(20, 4, dtype=torch.float64)


def starts(model, strategy, chains, *args):
    return OHMC(model, init_strategy=strategy).prepare(chains, 5, None, *args).values


@pytest.mark.long
def test_chains_begin_at_different_draws():
    draws = {"U": StiefelUniform(4, 2).sample((6,)), "scales": torch.rand(6, 2), "noise": torch.rand(6)}
    values = starts(components, init_to_draws({**draws, "other": torch.zeros(6)}), 6, DATA)
    order = [int((draws["noise"] - noise).abs().argmin()) for noise in values["noise"]]
    assert sorted(order) == list(range(6))
    for name, value in draws.items():
        torch.testing.assert_close(values[name], value[order])


def test_sites_without_draws_have_the_fallback():
    fallback = init_to_value(values={"scales": torch.tensor([3.0, 2.0]), "noise": torch.tensor(0.5)})
    U = StiefelUniform(4, 2).sample((2,)).numpy()
    values = starts(components, init_to_draws({"U": U}, fallback=fallback), 3, DATA)
    torch.testing.assert_close(values["scales"], torch.tensor([3.0, 2.0]).expand(3, 2))
    nearest = (values["U"][:, None] - torch.as_tensor(U)).norm(dim=(-2, -1)).min(1)
    assert nearest.values.max() < 1e-6
    assert sorted(nearest.indices.tolist()) in ([0, 0, 1], [0, 1, 1])


@pytest.mark.parametrize(
    "make",
    [AutoNormal, pytest.param(AutoMultivariateNormal, marks=pytest.mark.long), AutoStiefelLowRankMultivariateNormal],
)
def test_starts_have_the_distribution_of_the_guide(make):
    guide = make(components, init_scale=0.3)
    guide(DATA)
    values = starts(components, init_to_guide(guide, DATA), 200, DATA)
    with torch.no_grad():
        median = guide.median(DATA)
    logs = (values["scales"].log() - median["scales"].log())[:, 0]
    assert_mean(logs, 0.0)
    if make is not AutoStiefelLowRankMultivariateNormal:  # whose variance depends on its factor
        assert_mean(logs.square(), 0.09)
    assert (values["U"].mT @ values["U"] - torch.eye(2)).abs().max() < 1e-10
    assert values["U"].std(0).min() > 0.01


def test_a_point_and_a_guide_of_functions():
    point = AutoDelta(components)
    point(DATA)
    values = starts(components, init_to_guide(point, DATA), 2, DATA)
    for name, value in point.median().items():
        torch.testing.assert_close(values[name], value.detach().expand_as(values[name]))

    def guide(y):
        pyro.sample("U", StiefelUniform(4, 2))
        scales = torch.full((2,), 7.0)
        pyro.sample("scales", dist.Delta(scales).to_event(1))
        pyro.sample("noise", dist.Delta(torch.tensor(0.25)))

    values = starts(components, init_to_guide(guide, DATA), 2, DATA)
    torch.testing.assert_close(values["scales"], torch.full((2, 2), 7.0))
    assert (values["U"][0] - values["U"][1]).norm() > 1e-3


def test_draws_where_the_density_is_zero_are_replaced():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("positive", torch.where(x > 0, 0.0, -torch.inf))

    draws = torch.tensor([-1.0, 2.0, -3.0, 4.0])
    values = starts(model, init_to_draws({"x": draws}), 2)
    assert set(values["x"].tolist()) <= {2.0, 4.0}


def test_discrete_sites_are_summed_out_as_ever():
    def mixture(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(mean * z, 1.0), obs=y)

    guide = AutoNormal(pyro.poutine.block(mixture, hide=["z"]))
    guide(torch.ones(5))
    assert starts(mixture, init_to_guide(guide, torch.ones(5)), 3, torch.ones(5))["mean"].shape == (3,)


@pytest.mark.long
def test_kernels_of_pyro_and_copies():
    guide = AutoNormal(components)
    guide(DATA)
    strategy = init_to_guide(guide, DATA)
    kernel = pyro.infer.NUTS(components, init_strategy=strategy)
    kernel.setup(0, DATA)
    assert sorted(kernel.initial_params) == ["U", "noise", "scales"]
    draws = {"U": StiefelUniform(4, 2).sample((2,)), "scales": torch.rand(2, 2), "noise": torch.rand(2)}
    again = pickle.loads(pickle.dumps(init_to_draws(draws)))
    mcmc = MCMC(OHMC(components, init_strategy=again), 5, 5, num_chains=2, disable_progbar=True)
    mcmc.run(DATA)
    assert mcmc.get_samples()["U"].shape == (10, 4, 2)


def test_errors_name_the_site():
    guide = AutoNormal(pyro.poutine.block(components, hide=["noise"]))
    guide(DATA)
    with pytest.raises(ValueError, match=r"the guide has no site 'noise'.*\['U', 'scales'\]"):
        starts(components, init_to_guide(guide, DATA), 2, DATA)
    with pytest.raises(ValueError, match=r"Site 'U': the initial value has shape \(2, 4\)"):
        starts(components, init_to_draws({"U": torch.ones(3, 2, 4)}), 2, DATA)
    with pytest.raises(ValueError, match=r"init_to_draws has draws only for \['V'\], but the model samples \['U', "):
        starts(components, init_to_draws({"V": torch.ones(3, 2, 4)}), 2, DATA)
    for draws, words in [([1.0], "a dictionary"), ({}, "a dictionary"), ({"x": torch.tensor(1.0)}, "first dimension")]:
        with pytest.raises(ValueError, match=words):
            init_to_draws(draws)
    with pytest.raises(ValueError, match=r"\{'x': 2, 'y': 3\}"):
        init_to_draws({"x": torch.ones(2), "y": torch.ones(3)})
    with pytest.raises(ValueError, match="guide=None, expected a guide"):
        init_to_guide(None)
