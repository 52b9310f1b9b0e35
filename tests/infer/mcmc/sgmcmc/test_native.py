"""Steps on minibatches as native code: the same draws, from the same batches and random numbers."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT
from pyro_manifold.infer.mcmc.sgmcmc import IterationSettings, PolynomialDecay, StochasticSteps
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code

pytestmark = native_code

ROWS = 60


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


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


# Options and models that change the code; the kernels as they are: `test_conformance.py`.
SHORT = [
    (SGHMC, {"step_size": 0.01, "friction": 0.1, "resample_momentum": True}, raters),
    (OSGHMC, {"step_size": 0.2, "friction": 0.1, "scales": "adapt"}, components),
]
LONG = [
    (PSGLD, {"step_size": 1e-3}, raters),
    (SGHMC, {"step_size": 0.01, "friction": 0.1, "integrator": "euler"}, raters),
    (OSGHMC, {"step_size": 0.01, "friction": 0.1, "minibatches": "symmetric"}, components),
    (OSGHMC, {"step_size": 0.01, "friction": 0.1, "minibatches": "independent", "scales": {"U": 0.5}}, components),
    (SGLD, {"step_size": 0.05, "scales": "adapt"}, raters),
    (SGNHT, {"step_size": 0.01, "minibatches": "shuffled", "thermostat_mass": 1.0}, raters),
]


@pytest.fixture(autouse=True)
def _native_code_from_the_start(monkeypatch):
    make_native_code_at_once(monkeypatch)


def sampled(kernel, model, *args, **options):
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel(model), 30, 10, num_chains=3, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc.get_samples(group_by_chain=True), mcmc._sampling.run


def made_of(kernel, **options):
    return lambda model: kernel(model, num_steps=4, **options)


@pytest.mark.parametrize(
    ("kernel", "options", "model"), [*SHORT, *[pytest.param(*each, marks=pytest.mark.long) for each in LONG]]
)
def test_draws_are_those_without(kernel, options, model, monkeypatch):
    found, run = sampled(made_of(kernel, **options), model, numbers(ROWS, 3))
    assert run.transitions[0].step.graph.backend == "native"
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    expected, run = sampled(made_of(kernel, **options), model, numbers(ROWS, 3))
    assert run.transitions[0].step.graph.backend == "steps"
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-7, atol=1e-7)


def test_a_loader_whose_last_batch_is_smaller(monkeypatch):
    data = TensorDataset(numbers(ROWS, 3), torch.arange(ROWS) % 3)

    def draws():
        loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
        pyro.set_rng_seed(0)
        kernel = SGHMC(fed, step_size=0.01, friction=0.1, num_steps=3)
        mcmc = MCMC(kernel, 30, 10, num_chains=3, disable_progbar=True)
        mcmc.run(data_loader=loader)
        return mcmc.get_samples()["w"], mcmc._sampling.run.transitions[0].step

    found, native = draws()
    assert native.graph.backend == "native"
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    torch.testing.assert_close(found, draws()[0], rtol=1e-7, atol=1e-7)


def drawn(kernel, draws=100, **options):
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel, draws, 10, num_chains=3, disable_progbar=True, **options)
    mcmc.run(numbers(ROWS, 3))
    return mcmc


def one_by_one(monkeypatch):
    monkeypatch.setattr(StochasticSteps, "iterations_per_call", lambda self, settings: 1)


def test_how_many_iterations_are_made_together():
    run = drawn(SGLD(raters, step_size=1e-3, num_steps=2)).kernel.run
    assert [run.transitions[0].iterations_per_call(IterationSettings(k)) for k in (1, 2, 3, 5, 8)] == [1, 1, 1, 3, 1]


def leaving(x):
    """A constant force, at 0.004 a step against friction, over an edge at 1 beyond which the density is no number."""
    w = pyro.sample("w", dist.Normal(0.0, 100.0))
    pyro.factor("slope", 0.01 * w + torch.where(w > 1.0, torch.nan, 0.0))


@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")  # of their drift
def test_draws_before_one_that_is_not_finite_are_those_made_one_by_one(monkeypatch):
    def draws():
        kernel = SGHMC(leaving, step_size=0.2, friction=0.1, temperature=1e-6)  # noise of 0.01 on the way
        with pytest.warns(UserWarning, match="became NaN or infinite at step"):
            mcmc = drawn(kernel, 2000, initial_params={"w": torch.tensor([0.0, -1.0, -2.0])})
        return mcmc.get_samples(group_by_chain=True)["w"]

    together = draws()
    one_by_one(monkeypatch)
    alone = draws()
    assert 8 < together.shape[1] < 2000
    assert torch.equal(together, alone)
    assert together.isfinite().all()


@pytest.mark.parametrize(
    "options", [{"step_size": PolynomialDecay(1e-3)}, {"step_size": 1e-3, "per_chain_minibatches": True}]
)
def test_steps_that_differ_are_made_one_by_one(options):
    _, run = sampled(made_of(SGLD, **options), raters, numbers(ROWS, 3))
    assert run.transitions[0].step.graph.backend == "steps"
