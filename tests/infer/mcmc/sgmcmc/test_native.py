"""Steps on minibatches as native code: the same draws, from the same batches and random numbers."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, PSGLD, SGHMC, SGLD
from pyro_manifold.infer.mcmc import haste
from pyro_manifold.infer.mcmc.sgmcmc.schedules import PolynomialDecay

ROWS = 60


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(x):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=x[:, 0])


def components(x):
    U = pyro.sample("U", StiefelUniform(3, 2))
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x), subsample_size=7) as rows:
        covariance = U * scales, torch.ones(3)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), *covariance), obs=x[rows])


def raters(x):
    """Rows look up a site, by a number of theirs, and a class among several."""
    who = torch.arange(ROWS) % 5
    classes = torch.arange(ROWS) % 3
    with pyro.plate("raters", 5):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", len(x), subsample_size=7) as rows:
        logits = level[who[rows]].unsqueeze(-1) * slopes + x[rows]
        pyro.sample("y", dist.Categorical(logits=logits), obs=classes[rows])


def fed(x, classes):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    with pyro.plate("rows", ROWS, subsample_size=len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w), obs=classes)


KERNELS = [
    (SGLD, {"step_size": 1e-3}, whole),
    (SGHMC, {"step_size": 0.01, "friction": 0.1, "integrator": "euler"}, whole),
    (PSGLD, {"step_size": 1e-3}, raters),
    (SGHMC, {"step_size": 0.01, "friction": 0.1, "resample_momentum": True}, raters),
    (OSGHMC, {"step_size": 0.01, "friction": 0.1, "minibatches": "symmetric"}, components),
    (OSGHMC, {"step_size": 0.01, "friction": 0.1, "minibatches": "independent", "scales": {"U": 0.5}}, components),
]


@pytest.fixture(autouse=True)
def _native_code_from_the_start(monkeypatch):
    monkeypatch.setattr(haste, "_OPERATORS_WORTH_MAKING", 0)


def sampled(kernel, model, *args, **options):
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel(model), 30, 10, num_chains=3, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc.get_samples(group_by_chain=True), mcmc._session.run


def made_of(kernel, **options):
    return lambda model: kernel(model, num_steps=4, **options)


@pytest.mark.parametrize(("kernel", "options", "model"), KERNELS)
def test_draws_are_those_without(kernel, options, model, monkeypatch):
    found, run = sampled(made_of(kernel, **options), model, numbers(ROWS, 3))
    assert run.transitions[0].native.graph.form == "native"
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    expected, run = sampled(made_of(kernel, **options), model, numbers(ROWS, 3))
    assert run.transitions[0].native is None
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-7, atol=1e-7)


def test_a_loader_whose_last_batch_is_smaller(monkeypatch):
    data = TensorDataset(numbers(ROWS, 3), torch.arange(ROWS) % 3)

    def draws():
        loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
        pyro.set_rng_seed(0)
        kernel = SGHMC(fed, step_size=0.01, friction=0.1, num_steps=3)
        mcmc = MCMC(kernel, 30, 10, num_chains=3, disable_progbar=True, data_loader=loader)
        mcmc.run()
        return mcmc.get_samples()["w"], mcmc._session.run.transitions[0].native

    found, native = draws()
    assert native.graph.form == "native"
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    torch.testing.assert_close(found, draws()[0], rtol=1e-7, atol=1e-7)


def test_in_float32():
    torch.set_default_dtype(torch.float32)
    options = {"step_size": 0.01, "friction": 0.1}
    found, run = sampled(made_of(OSGHMC, **options), components, numbers(ROWS, 3))
    assert run.transitions[0].native.graph.form == "native"
    assert found["U"].dtype == torch.float32
    assert (found["U"].mT @ found["U"] - torch.eye(2)).abs().max() < 1e-5


def test_a_run_that_is_saved_goes_on_the_same():
    def run():
        pyro.set_rng_seed(0)
        run = made_of(OSGHMC, step_size=0.01, friction=0.1)(components).prepare(3, 0, None, numbers(ROWS, 3))
        run.haste.planned = 1000
        return run

    whole, first, second = run(), run(), run()
    for _ in range(30):
        whole.advance()
    for _ in range(17):
        first.advance()
    second.load_state_dict(first.state_dict())
    assert second.transitions[0].native.graph.form == "native"
    for _ in range(13):
        second.advance()
    assert torch.equal(whole.sites["U"], second.sites["U"])


@pytest.mark.parametrize(
    "options", [{"step_size": PolynomialDecay(1e-3)}, {"step_size": 1e-3, "own_minibatches": True}]
)
def test_steps_that_differ_are_made_one_by_one(options):
    _, run = sampled(made_of(SGLD, **options), raters, numbers(ROWS, 3))
    assert run.transitions[0].native is None
