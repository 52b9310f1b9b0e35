"""Minibatches: unbiased gradients, batches as inputs of one graph, and where a run is in its data."""

import pickle
import warnings
from unittest import mock

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from problems.monte_carlo import assert_mean
from pyro_manifold.compiled import Vectorised
from pyro_manifold.density import Batches
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC, SGLD
from tests.infer.mcmc.test_conformance import advance, same

SIZE = 60
X = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
Y = torch.sin(3 * X)


def one_plate(subsample_size=12):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", SIZE, subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Normal(w[0] + w[1] * X[rows], 0.5), obs=Y[rows])


def two_plates():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("first", SIZE, subsample_size=10) as rows:
        pyro.sample("y", dist.Normal(w[0] * X[rows], 0.5), obs=Y[rows])
    with pyro.plate("second", SIZE, subsample_size=30) as rows:
        pyro.sample("z", dist.Normal(w[1] * X[rows], 2.0), obs=Y[rows].cos())


TABLE = torch.outer(Y[:12], X[:20]) + 0.3


def nested_plates():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    outer, inner = (
        pyro.plate("columns", 20, subsample_size=5, dim=-1),
        pyro.plate("rows", 12, subsample_size=4, dim=-2),
    )
    with outer as columns, inner as rows:
        mean = w[0] * Y[rows].unsqueeze(-1) + w[1] * X[columns]
        pyro.sample("y", dist.Normal(mean, 0.5), obs=TABLE[rows][:, columns])


def with_loader(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    U = pyro.sample("U", StiefelUniform(3, 2))
    with pyro.plate("data", SIZE, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * U[0, 0] * x, 0.5), obs=y)


def on_all(model):
    """The same model without subsampling."""
    plate = pyro.plate

    def whole():
        with mock.patch.object(pyro, "plate", lambda name, size, dim=None, **_: plate(name, size, dim=dim)):
            model()

    return whole


def loader(**options):
    return DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, **options)


@pytest.mark.parametrize(
    ("model", "order", "own"),
    [
        (two_plates, "independent", False),
        (nested_plates, "shuffled", True),
        pytest.param(one_plate, "symmetric", True, marks=pytest.mark.long),
        pytest.param(one_plate, "independent", True, marks=pytest.mark.long),
        pytest.param(two_plates, "shuffled", False, marks=pytest.mark.long),
        pytest.param(nested_plates, "symmetric", False, marks=pytest.mark.long),
    ],
)
def test_gradients_are_unbiased(model, order, own):
    """At one point of three chains: the mean over many steps is the gradient of all data."""
    start = {"w": torch.tensor([[0.3, -0.4]] * 3)}
    kernel = SGLD(model, step_size=0.1, minibatches=order, per_chain_minibatches=own)
    potential = kernel.prepare(3, 0, start).problem.batched
    whole = SGLD(on_all(model), step_size=0.1).prepare(3, 0, start).problem.batched
    found = [potential(start, potential.batches(step)) for step in range(1500)]
    energies = torch.stack([energy for energy, _ in found], 1)
    gradients = torch.stack([gradient["w"] for _, gradient in found], 1)
    energy, truth = whole(start)
    chains = range(3) if own else [0]
    for chain in chains:
        assert_mean(energies[chain], float(energy[chain]))
        for k in range(2):
            assert_mean(gradients[chain, :, k], float(truth["w"][chain, k]))
    assert torch.allclose(gradients[0], gradients[1]) != own


def test_all_elements_come_once_in_an_epoch():
    batches = Batches(lambda _: {"data": (12, 4)}, order="symmetric", seed=5)
    there = torch.cat([batches(step)["data"] for step in range(3)])
    back = [batches(step)["data"] for step in range(3, 6)]
    assert sorted(there.tolist()) == list(range(12))
    assert all(torch.equal(batches(2 - k)["data"], back[k]) for k in range(3))
    assert not torch.equal(torch.cat([batches(step)["data"] for step in range(6, 9)]), there)


@pytest.mark.parametrize("source", ["plates", "loader"])
def test_a_new_batch_traces_nothing(monkeypatch, source):
    traces, calls = [], []
    vectorise = Vectorised.vectorise
    monkeypatch.setattr(
        Vectorised, "vectorise", lambda *given, **options: (traces.append(1), vectorise(*given, **options))
    )

    def model(*arguments):
        calls.append(1)
        return with_loader(*arguments) if arguments else one_plate()

    kernel = OSGHMC(model, step_size=0.01)
    mcmc = MCMC(kernel, 1, 1, num_chains=3, disable_progbar=True)
    mcmc.run(data_loader=loader() if source == "loader" else None)
    run = kernel.run
    for _ in range(8):  # all shapes of batches have come
        run.advance()
    run.code.compare_density = lambda count: None  # which asks the model itself, now and then
    before = len(traces), len(calls)
    for _ in range(60):
        run.advance()
    assert (len(traces), len(calls)) == before
    assert len(run.problem.batched.graphs) == (2 if source == "loader" else 1)


# Where batches come from; plates that all chains share, with every kernel: `test_conformance.py`.
SOURCES = {
    "own": ({"model": nested_plates, "per_chain_minibatches": True}, None),
    "loader": ({"model": with_loader}, loader),
    "loader with a generator": ({"model": with_loader}, lambda: loader(generator=torch.Generator().manual_seed(3))),
    "own of a loader": ({"model": with_loader, "per_chain_minibatches": True}, lambda: loader(drop_last=True)),
}


def prepared(name, seed):
    pyro.set_rng_seed(seed)
    options, source = SOURCES[name]
    kernel = OSGHMC(**options, step_size=1e-2, num_steps=3)
    return kernel.prepare(3, 4, None, data_loader=None if source is None else source())


@pytest.mark.parametrize("name", SOURCES)
def test_a_run_continues_bit_for_bit(name):
    first = prepared(name, 0)
    advance(first, 7)
    saved = pickle.loads(pickle.dumps(first.state_dict()))
    expected = advance(first, 9)
    torch.rand(5)  # what others draw changes nothing
    second = prepared(name, 1)
    second.load_state_dict(saved)
    assert same(advance(second, 9), expected)


def test_a_loader_leaves_the_global_random_numbers_alone():
    run = prepared("loader", 0)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for _ in range(10):
        run.advance()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.long
def test_posterior_of_a_loader():
    """A Gaussian posterior, with batches small enough to matter and steps small enough that they do not."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", SIZE, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5), obs=y)

    design = torch.stack([torch.ones(SIZE), X], 1)
    precision = torch.eye(2) + design.T @ design / 0.25
    mean = torch.linalg.solve(precision, design.T @ Y / 0.25)
    kernel = SGHMC(model, step_size=0.005, num_steps=40, friction=0.05)
    mcmc = MCMC(kernel, 100, 30, num_chains=64, disable_progbar=True)
    mcmc.run(data_loader=loader())
    draws = mcmc.get_samples(group_by_chain=True)["w"]
    for k in range(2):
        assert_mean(draws[..., k], float(mean[k]))
    spread = draws.flatten(0, 1).std(0) / precision.inverse().diagonal().sqrt()
    assert ((spread - 1).abs() < 0.1).all()


def test_dictionaries_and_single_tensors_are_batches():
    def named(y, x, slope):
        with_loader(x, y * slope)

    def single(x):
        with_loader(x, x)

    for model, source, others in [
        (named, [{"x": X[:20], "y": Y[:20]}, {"x": X[20:40], "y": Y[20:40]}], {"slope": 2.0}),
        (single, [X[:30], X[30:]], {}),
    ]:
        mcmc = MCMC(OSGHMC(model, step_size=0.01), 5, 0, disable_progbar=True)
        mcmc.run(data_loader=source, **others)
        assert mcmc.get_samples()["w"].shape == (5, 2)


def test_under_the_mcmc_of_pyro():
    mcmc = pyro.infer.MCMC(SGHMC(one_plate, step_size=0.01), 20, 5, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["w"].shape == (20, 2)


def test_export_leaves_out_what_minibatches_do_not_determine():
    for source in (None, loader()):
        model = one_plate if source is None else with_loader
        mcmc = MCMC(OSGHMC(model, step_size=0.01), 5, 0, num_chains=2, disable_progbar=True)
        mcmc.run(data_loader=source)
        with pytest.warns(UserWarning, match="log_likelihood is left out: .*(minibatches|data_loader)"):
            data = mcmc.to_inferencedata(deterministic=False)
        assert "w" in data.posterior


@pytest.mark.parametrize("options", [{"step_size": 0.02}, {"temperature": 0.5}, {"scales": {"w": 2.0}}])
def test_a_run_of_other_settings_is_refused(options):
    saved = SGHMC(one_plate, step_size=0.01).prepare(2, 0, None).state_dict()
    other = SGHMC(one_plate, **{"step_size": 0.01, **options}).prepare(2, 0, None)
    with pytest.raises(ValueError, match=f"The saved run has {next(iter(options))}="):
        other.load_state_dict(saved)


def regression_of_batch(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", SIZE, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5), obs=y)


@pytest.mark.parametrize("source", ["DataLoader", "list"])
def test_short_batches_count_for_what_they_have(source):
    """In a pass that nobody shuffles each row must count once: the mean gradient of a pass is that of all data."""
    pairs = [(X[:50], Y[:50]), (X[50:58], Y[50:58]), (X[58:], Y[58:])]
    batches = DataLoader(TensorDataset(X, Y), batch_size=25) if source == "DataLoader" else pairs
    start = {"w": torch.tensor([[0.3, -0.4]] * 2)}
    potential = SGLD(regression_of_batch, step_size=0.1).prepare(2, 0, start, data_loader=batches).problem.batched
    whole = SGLD(on_all(one_plate), step_size=0.1).prepare(2, 0, start).problem.batched
    gradient = torch.stack([potential(start, potential.batches(step))[1]["w"] for step in range(3)]).mean(0)
    torch.testing.assert_close(gradient, whole(start)[1]["w"])


def test_chains_with_batches_of_their_own_see_all_of_a_loader():
    batches = [(X[k : k + 12], Y[k : k + 12]) for k in range(0, SIZE, 12)]
    kernel = SGLD(regression_of_batch, step_size=1e-3, per_chain_minibatches=True)
    seen = kernel.prepare(5, 0, None, data_loader=batches).problem.batched.batches
    firsts = torch.stack([seen(step)["argument 0"][:, 0] for step in range(40)])  # (steps, chains)
    assert all(len(firsts[:, chain].unique()) == 5 for chain in range(5))


def test_deterministic_sites_of_a_minibatch_are_left_out():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.deterministic("twice", 2 * w)
        with pyro.plate("data", SIZE, subsample_size=12) as rows:
            pyro.deterministic("residual", Y[rows] - w)
            pyro.sample("y", dist.Normal(w, 0.5), obs=Y[rows])

    mcmc = MCMC(SGLD(model, step_size=1e-3), 5, 0, disable_progbar=True)
    mcmc.run()
    with pytest.warns(UserWarning, match=r"\['residual'\] are left out, since their values differ"):
        draws = mcmc.get_samples(deterministic=True)
    assert sorted(draws) == ["twice", "w"]


OUTCOMES = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run_and_warnings(kernel):
    mcmc = MCMC(kernel, 200, 200, num_chains=4, disable_progbar=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run()
    return mcmc.get_samples()["mean"].std(), [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("kernel", "short", "long"), [pytest.param(OSGHMC, 6e-4, 1e-2, marks=pytest.mark.long), (SGLD, 8e-6, 1e-3)]
)
def test_minibatches_that_heat_the_chains_are_reported(kernel, short, long):
    """The noise of a batch of 20 of 1,000 has a variance of about 50 · 1,000; the posterior's precision is 1,000."""

    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        with pyro.plate("data", 1000, subsample_size=20) as rows:
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=OUTCOMES[rows])

    cold, silent = run_and_warnings(kernel(model, step_size=short, num_steps=5))
    hot, warned = run_and_warnings(kernel(model, step_size=long, num_steps=5))
    assert not silent
    assert "The momenta of chains are at a temperature" in warned[0]
    assert hot > 1.25 * cold


@pytest.mark.parametrize("total", [50, 2000])
def test_a_plate_of_another_size_than_the_loaders_data_is_reported(total):
    loader = DataLoader(TensorDataset(OUTCOMES), batch_size=20, shuffle=True)

    def model(y, total):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        with pyro.plate("rows", total, subsample_size=len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    SGLD(model, step_size=1e-5).prepare(1, 0, None, data_loader=loader, total=1000)
    with pytest.warns(UserWarning, match=f"size {total}, but data_loader has 1000 examples"):
        SGLD(model, step_size=1e-5).prepare(1, 0, None, data_loader=loader, total=total)
