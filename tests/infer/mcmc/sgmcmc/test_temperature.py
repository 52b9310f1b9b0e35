"""The temperature of momenta: averaged over steps, alike in every form, and of the hottest coordinate too."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC, SGLD, SGNHT
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code

ROWS = 1000
SITE = "The momenta of one coordinate of site 'w'"


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def components(x):
    U = pyro.sample("U", StiefelUniform(3, 2))
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x), subsample_size=7) as rows:
        covariance = U * scales, torch.ones(3)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), *covariance), obs=x[rows])


def regression(x, size):
    """Its posterior is normal, of the covariance (xᵀx + I/100)⁻¹."""
    y = numbers(len(x))

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
        with pyro.plate("rows", len(x), subsample_size=size) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])

    covariance = torch.linalg.inv(x.mT @ x + torch.eye(x.shape[1]) / 100)
    return model, covariance @ x.mT @ y, covariance.diagonal()


def run(kernel, draws, warmup_steps=0, num_chains=4, args=(), **options):
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel, draws, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(*args)
    return mcmc, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("kernel", "options", "native"),
    [
        pytest.param(OSGHMC, {"step_size": 0.02, "scales": {"U": 0.5, "scales": 2.0}}, False, marks=pytest.mark.long),
        pytest.param(OSGHMC, {"step_size": 0.02, "integrator": "euler"}, True, marks=native_code),
        pytest.param(SGLD, {"step_size": 1e-3}, False, marks=pytest.mark.long),
        pytest.param(SGNHT, {"step_size": 0.02}, False, marks=pytest.mark.long),
    ],
)
def test_it_is_the_mean_over_the_steps_of_an_iteration(kernel, options, native, monkeypatch):
    """Of eight steps of one iteration, the mean over eight iterations of one step."""
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", str(int(native)))
    make_native_code_at_once(monkeypatch)
    found = {}
    for steps in (1, 8):
        mcmc, _ = run(kernel(components, num_steps=steps, **options), 96 // steps, args=(numbers(60, 3),))
        transition = mcmc._sampling.run.transitions[0]
        assert (transition.step.graph.backend == "native") == native
        found[steps] = mcmc.get_extra_fields(group_by_chain=True)["kinetic_temperature"]
    torch.testing.assert_close(found[8], found[1].unflatten(1, (12, 8)).mean(2), rtol=1e-6, atol=1e-6)


@pytest.mark.long
def test_heat_that_cancels_over_an_epoch_is_seen():
    """An iteration is the data forwards and backwards, over which what minibatches add to momenta nearly cancels."""
    model, mean, variance = regression(numbers(ROWS, 1), 50)
    kernel = SGHMC(model, step_size=0.002, num_steps=40, friction=0.03, minibatches="symmetric")
    mcmc, said = run(kernel, 1000, 200, 8, initial_params={"w": mean.expand(8, 1)})
    draws = mcmc.get_samples(group_by_chain=True)["w"]
    assert float((draws - mean).square().mean() / variance[0]) > 1.2
    assert len(said) == 1
    assert "The momenta of chains are at a temperature" in said[0]


def stiff(size):
    """Twenty coordinates, of which the seventh is known four times as well as others."""
    scales = torch.full((20,), 0.25)
    scales[7] = 1.0
    return regression(numbers(ROWS, 20) * scales, size)


def test_one_stiff_coordinate_is_named():
    model, mean, variance = stiff(50)
    kernel = SGHMC(model, step_size=0.004, num_steps=10)
    mcmc, said = run(kernel, 600, 100, 8, initial_params={"w": mean.expand(8, 20)})
    draws, fields = mcmc.get_samples(group_by_chain=True)["w"], mcmc.get_extra_fields()
    ratio = (draws - mean).square().mean((0, 1)) / variance
    assert ratio[7] > 1.3
    assert ratio[:7].max() < 1.2
    assert fields["kinetic_temperature"].mean() < 1.25
    assert mcmc._sampling.run.state.hottest == 7
    assert len(said) == 1
    assert SITE in said[0]
    assert "scales={'w': ...}" in said[0]


@pytest.mark.parametrize("draws", [25, pytest.param(100, marks=pytest.mark.long)])
def test_no_coordinate_of_many_looks_hot_by_chance(draws):
    """The hottest of 2,000 by their own temperature would be above 1.25 in most of these iterations."""

    def model():
        pyro.sample("w", dist.Normal(torch.zeros(2000), 1.0).to_event(1))

    mcmc, said = run(SGHMC(model, step_size=0.1, num_steps=5), draws, num_chains=2)
    assert not said
    later = mcmc.get_extra_fields(group_by_chain=True)["hottest_kinetic_temperature"][:, draws // 2 :]
    assert later.mean() < 1.6


def test_a_saved_run_continues_with_the_temperatures_of_coordinates():
    model, *_ = stiff(50)

    def prepared():
        pyro.set_rng_seed(0)
        return SGHMC(model, step_size=0.004, num_steps=3).prepare(2, 4, None)

    whole, first, second = prepared(), prepared(), prepared()
    for _ in range(30):
        whole.advance()
    for _ in range(17):
        first.advance()
    second.load_state_dict(first.state_dict())
    for _ in range(13):
        second.advance()
    assert second.state.hottest == whole.state.hottest
    assert torch.equal(second.state.heat["w",], whole.state.heat["w",])
    for name, value in whole.statistics.items():
        assert torch.equal(second.statistics[name], value)
