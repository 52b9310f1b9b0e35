"""Densities of long models as native code: the values of the model, also where a trace or a transform sees them."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.compiled import trace
from pyro_manifold.compiled.native.compilation import compile_function
from pyro_manifold.density.batched import BatchedPotential, value_and_gradient
from pyro_manifold.infer import MCMC, OHMC

CHAINS = 5


@pytest.fixture(autouse=True)
def _all_models_are_long(monkeypatch):
    monkeypatch.setattr("pyro_manifold.density.batched._LONG", 1)


def energy(sites):
    x, A = sites["x"], sites["A"]
    K = A @ A.mT + 2 * torch.eye(3)
    return torch.logdet(K) + (x.exp() * torch.linalg.solve(K, x)).sum() + 0.5 * x.square().sum()


def positions(seed):
    noise = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(CHAINS, 3, generator=noise), "A": torch.randn(CHAINS, 3, 3, generator=noise)}


def chain_by_chain(sites):
    each = [value_and_gradient(energy, {name: value[k] for name, value in sites.items()}) for k in range(CHAINS)]
    return torch.stack([one[0] for one in each]), {name: torch.stack([one[1][name] for one in each]) for name in sites}


@pytest.fixture
def potential():
    found = BatchedPotential(energy, positions(0), native=True)
    assert found.graph.backend == "native"
    return found


def test_energies_and_gradients(potential):
    for seed in (0, 1):
        torch.testing.assert_close(potential(positions(seed)), chain_by_chain(positions(seed)))


def test_one_chain_by_itself_in_a_trace_and_under_transforms(potential):
    single = potential.graph.of_single_rows
    one = [value[:1] for value in positions(1).values()]
    expected = chain_by_chain(positions(1))
    expected = [expected[0][:1], *[expected[1][name][:1] for name in ("x", "A")]]

    def twice(*values):
        return [2 * value for value in single(*[value + 0 for value in values])]

    graph = trace(twice, *[value[:1].clone() for value in positions(0).values()])
    second = torch.func.vmap(lambda x, A: single(x[None], A[None])[0][0])(*positions(1).values())
    torch.testing.assert_close(list(single(*one)), expected)
    torch.testing.assert_close(graph(*one), [2 * value for value in expected])
    torch.testing.assert_close(second, chain_by_chain(positions(1))[0])


def test_without_native_code_the_graph_is_in_use(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    assert BatchedPotential(energy, positions(0), native=True).graph.backend == "traced"
    monkeypatch.delenv("PYRO_MANIFOLD_NATIVE")
    monkeypatch.setattr("pyro_manifold.density.batched._LONG", 10_000)
    assert BatchedPotential(energy, positions(0), native=True).graph.backend == "traced"


def test_a_run_goes_where_it_would_with_the_graph(monkeypatch):
    def model(y):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        for t in range(len(y)):
            level = 0.5 * level
            pyro.sample(f"y{t}", dist.Normal(level, scale), obs=y[t])

    def draws():
        pyro.set_rng_seed(0)
        mcmc = MCMC(OHMC(model, adapt_centring=False), 10, 20, num_chains=3, disable_progbar=True)
        mcmc.run(torch.tensor([0.3, -0.1, 0.4]))
        return mcmc.get_samples(), mcmc.kernel.run.backends

    found, backends = draws()
    assert backends["density"] == "native"
    monkeypatch.setattr("pyro_manifold.density.batched._LONG", 10_000)
    expected, backends = draws()
    assert backends["density"] == "traced"
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_code_that_disagrees_is_not_used(monkeypatch):
    def wrong(*given):
        code = compile_function(*given)

        def call(steps, *values):
            return [value + 1 for value in code(steps, *values)]

        call.loop = code.loop
        return call

    monkeypatch.setattr("pyro_manifold.compiled.vectorisation.compile_function", wrong)
    found = BatchedPotential(energy, positions(0), native=True)
    assert found.graph.backend == "traced"
    assert found.graph.of_single_rows is None


def test_a_stored_run_continues_with_the_other_form(monkeypatch):
    def run():
        return OHMC(lambda: pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))).prepare(2, 2, None)

    first = run()
    first.iterate()
    saved = first.state_dict()
    assert saved["forms"]["density"] == "native"
    monkeypatch.setattr("pyro_manifold.density.batched._LONG", 10_000)
    other = run()
    with pytest.warns(UserWarning, match="had its density native, which is not possible here: it continues traced"):
        other.load_state_dict(saved)
    assert other.code.graphs["density"].backend == "traced"
