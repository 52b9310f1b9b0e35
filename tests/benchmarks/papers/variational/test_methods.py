"""Fits of guides: divergence, the search for a step size, draws."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.papers.variational import compare, methods

BUDGET = methods.Budget(0.0, 60)


def model():
    """A normal number of deviation exp(z), which is 0 once z is below −745: Pyro then raises an error."""
    z = pyro.sample("z", dist.Normal(torch.zeros(5), 1.0).to_event(1))
    pyro.sample("x", dist.Normal(torch.zeros(5), z.exp()).to_event(1), obs=torch.ones(5))


@pytest.mark.filterwarnings("ignore:SVI falls back")
def test_steps_that_are_too_long_diverge_and_the_comparison_continues():
    fit = methods.fit(methods.METHODS["Stiefel basic"], model, (), 2, 1e6, BUDGET)
    assert fit.diverged
    assert fit.steps < BUDGET.steps
    row = compare.row("Stiefel basic", 2, 1e6, [fit], {}, compare.TABLE_3)
    assert compare.cell(row["ELBO"]) == "--"
    assert row["curve"] == []


def test_errors_of_a_step_are_divergence_only_after_the_first():
    class Raising:
        def step(self):
            raise ValueError("Expected parameter scale")

    assert methods.step(Raising(), (), begun=True) == float("inf")
    with pytest.raises(ValueError, match="scale"):
        methods.step(Raising(), (), begun=False)


@pytest.mark.parametrize(("best", "tried"), [(0.04, 3), (2.0, 7), (1e-4, 8), (1e-30, methods.MOST_SIZES)])
def test_the_search_ends_inside_of_its_step_sizes(monkeypatch, best, tried):
    sizes = []

    def fit(method, model, data, rank, size, budget):
        sizes.append(size)
        elbo = -abs(torch.tensor(size / best).log().item())
        return methods.Fit(None, elbo, [], 1, 0.0)

    monkeypatch.setattr(methods, "fit", fit)
    method = methods.Method(None, None, (0.01, 0.03, 0.1))
    found = methods.best_step_size(method, None, (), 1, BUDGET)
    assert len(sizes) == tried
    assert tried == methods.MOST_SIZES or min(sizes) < found < max(sizes)


@pytest.mark.parametrize("works", [0.001, 1.0, None])
def test_the_search_goes_both_ways_if_all_step_sizes_diverge(monkeypatch, works):
    def fit(method, model, data, rank, size, budget):
        near = works is not None and 0.5 < size / works < 2
        return methods.Fit(None, 0.0 if near else -float("inf"), [], 1, 0.0)

    monkeypatch.setattr(methods, "fit", fit)
    found = methods.best_step_size(methods.Method(None, None, (0.01, 0.03, 0.1)), None, (), 1, BUDGET)
    assert works is None or found == pytest.approx(works, rel=0.3)


@pytest.mark.parametrize(
    ("rest", "size", "plain"), [(methods.MIXED, 1e-3, "Adam"), (methods.PLAIN, (1e-3, 1e-4), "SGD")]
)
def test_one_rule_for_the_factor_and_another_for_the_rest(rest, size, plain):
    pyro.clear_param_store()
    method = methods.METHODS[f"Stiefel RMSProp{rest}"]
    optimiser, guide = method.optimiser(size), method.guide(model, 2)
    svi = methods.SVI(model, guide, optimiser, methods.Trace_ELBO())
    svi.step()
    store = pyro.get_param_store()
    rules = {store.param_name(point).split(".")[-1]: each for point, each in optimiser.optim_objs.items()}
    assert {name: type(each).__name__.removeprefix("TorchRiemannian") for name, each in rules.items()} == {
        "loc": plain,
        "scale": plain,
        "factor_scale": plain,
        "cov_factor": "RMSProp",
    }
    factor = guide.cov_factor.detach()
    assert methods.Stiefel().contains(factor)
    # Of a parameter with the constraint, the gradient would reach the rule projected.
    assert [name for name in store if name.endswith("cov_factor") and store[name].unconstrained() is store[name]]


def test_draws_are_those_of_the_guide():
    def scales():
        pyro.sample("scale", dist.HalfNormal(torch.ones(3)).to_event(1))
        pyro.sample("share", dist.Beta(2.0, 2.0))

    guide = methods.METHODS["Stiefel Adam"].guide(scales, 1)
    guide()
    found = methods.draws(guide, 2000)
    assert found["scale"].shape == (2000, 3)
    assert found["share"].shape == (2000,)
    assert found["scale"].min() > 0
    low, high = guide.quantiles([0.1, 0.9])["share"]
    assert ((low < found["share"]) & (found["share"] < high)).double().mean() == pytest.approx(0.8, abs=0.04)
