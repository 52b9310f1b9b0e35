"""Sites of location-scale families in coordinates that warm-up chooses, shown as the model is written."""

import math
from functools import cache

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import infer as pyros

from problems.monte_carlo import assert_mean
from pyro_manifold.density import CENTREDNESS
from pyro_manifold.infer import GHMC, MCMC, OHMC, Tuning
from pyro_manifold.infer.mcmc.adaptation import Centring
from tests.infer.mcmc.test_conformance import is_same_state
from tests.parameters import long_except


def funnel():
    logarithm = pyro.sample("logarithm", dist.Normal(0.0, 3.0))
    with pyro.plate("elements", 4):
        pyro.sample("x", dist.Normal(0.0, (logarithm / 2).exp()))


def precisely_measured():
    loc, scale = pyro.sample("loc", dist.Normal(0.0, 10.0)), pyro.sample("scale", dist.HalfNormal(20.0))
    with pyro.plate("elements", 8):
        x = pyro.sample("x", dist.Normal(loc, scale))
        pyro.sample("y", dist.Normal(x, 0.1), obs=torch.linspace(-20.0, 20.0, 8))


def run_of(model, draws=400, warmup=300, kernel=OHMC, chains=4, seed=0, **options):
    pyro.set_rng_seed(seed)
    mcmc = MCMC(kernel(model), draws, warmup, num_chains=chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


@pytest.mark.parametrize("kernel", long_except([OHMC, GHMC], OHMC))
def test_a_funnel_is_drawn_to_its_neck(kernel):
    """Moments and both tails of the logarithm of its scale, a normal of standard deviation 3."""
    draws = run_of(funnel, 1500, 400, kernel).get_samples(group_by_chain=True)
    logarithm = draws["logarithm"] / 3
    assert_mean(logarithm, 0.0)
    assert_mean(logarithm.square(), 1.0)
    for bound in (-1.6449, 1.6449):
        assert_mean((logarithm < bound).to(logarithm), 0.5 * (1 + math.erf(bound / 2**0.5)))
    relative = draws["x"] * (-draws["logarithm"] / 2).exp().unsqueeze(-1)
    assert_mean(relative[..., 0], 0.0)
    assert_mean(relative[..., 0].square(), 1.0)


def test_what_the_data_determine_stays_as_it_is_written(capsys):
    mcmc = run_of(precisely_measured, 1)
    assert bool((mcmc.kernel.run.positions[CENTREDNESS] >= 0.8).all())


@cache
def run_of_funnel():
    """A short run, and the sites that its hook was given."""
    seen = []
    return run_of(funnel, 50, 150, hook_fn=lambda kernel, sites, stage, index: seen.append(sites)), seen


def test_draws_and_reports_are_those_of_the_model_as_written(capsys):
    mcmc, seen = run_of_funnel()
    assert bool((mcmc.kernel.centredness["x"] < 0.5).all())
    draws = mcmc.get_samples(group_by_chain=True)
    assert sorted(draws) == ["logarithm", "x"] == sorted(seen[-1])
    torch.testing.assert_close(draws["x"][:, -1], seen[-1]["x"])
    torch.testing.assert_close(draws["x"][:, -1], mcmc.kernel.run.values["x"])
    mcmc.summary()
    assert "Centredness chosen in warm-up (1 as written, 0 not centred): 'x' 0." in capsys.readouterr().out
    assert sorted(mcmc.diagnostics()["centredness"]) == ["x"]
    assert sorted(mcmc.kernel.inverse_mass_matrix) == [("logarithm", "x")]
    written = mcmc.program.target
    density = [-written.potential_fn({name: x[0, k] for name, x in draws.items()}) for k in range(50)]
    torch.testing.assert_close(mcmc.get_extra_fields(group_by_chain=True)["lp"][0], torch.stack(density))
    few = run_of(funnel, 50, 150, save_params=["x"])
    assert torch.equal(few.get_samples()["x"], mcmc.get_samples()["x"])


def test_a_stored_run_has_the_same_draws(tmp_path):
    expected = run_of_funnel()[0].get_samples(group_by_chain=True)["x"]
    stored = run_of(funnel, 50, 150, store=tmp_path / "run")
    torch.testing.assert_close(stored.get_samples(group_by_chain=True)["x"], expected)


def test_checkpoints_at_any_iteration_of_warm_up():
    """Before states are kept, within a window, at its end where coordinates change, and after warm-up."""
    pyro.set_rng_seed(0)
    first = OHMC(funnel).prepare(4, 200, None)
    second = OHMC(funnel).prepare(4, 200, first.target.sites(first.problem.initial_values))
    for iterations in (5, 60, 35, 40, 70):
        for _ in range(iterations):
            first.iterate()
        second.load_state_dict(first.state_dict())
        torch.testing.assert_close(second.positions, first.positions, rtol=0, atol=0)
    for _ in range(20):
        assert torch.equal(first.advance()["x"], second.advance()["x"])
    assert bool((first.centredness["x"] < 0.5).all())


@pytest.mark.long
def test_a_checkpoint_within_a_window_leads_to_the_same_choice():
    pyro.set_rng_seed(0)
    first = OHMC(funnel).prepare(4, 200, None)
    for _ in range(100):
        first.iterate()
    second = OHMC(funnel).prepare(4, 200, first.target.sites(first.problem.initial_values))
    second.load_state_dict(first.state_dict())
    assert is_same_state(second.state_dict(), first.state_dict())  # a part of a window may lead to the same choice
    for _ in range(80):
        assert torch.equal(first.advance()["x"], second.advance()["x"])
    assert torch.equal(first.positions[CENTREDNESS], second.positions[CENTREDNESS])


def test_a_run_is_continued_in_the_same_coordinates(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # which begins where enough iterations are planned
    expected = run_of(funnel, 40, 150).get_samples(group_by_chain=True)["x"]
    mcmc = run_of(funnel, 20, 150)
    mcmc.continue_run(20)
    torch.testing.assert_close(mcmc.get_samples(group_by_chain=True)["x"], expected)


def test_tuning_has_the_coordinates():
    mcmc = run_of(funnel, 10)
    tuning = mcmc.kernel.tuning
    warm = run_of(lambda: funnel(), 300, 0, lambda model: OHMC(model, tuning=tuning))
    torch.testing.assert_close(warm.kernel.centredness, mcmc.kernel.centredness)
    assert_mean((warm.get_samples(group_by_chain=True)["logarithm"] / 3).square(), 1.0)
    unknown = Tuning(0.5, {}, centredness={"y": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"centredness names 'y' .*'x': \(4,\)"):
        run_of(funnel, 10, 0, lambda model: OHMC(model, tuning=unknown))


def test_initial_values_are_given_as_written():
    first = {"logarithm": torch.full((4,), -1.0), "x": torch.full((4, 4), 0.3)}
    seen = []
    mcmc = run_of(funnel, 5, 60, initial_params=first, hook_fn=lambda kernel, sites, *_: seen.append(sites["x"]))
    assert torch.equal(mcmc.kernel.initial_params["x"], first["x"][0])
    tuned = OHMC(funnel, tuning=Tuning(0.1, {}, 0.1, {"x": torch.zeros(4)}))
    run = tuned.prepare(4, 0, first)
    torch.testing.assert_close(run.sites, first)
    assert not torch.equal(run.positions["x"], first["x"])


def test_a_model_that_fails_elsewhere_keeps_its_coordinates(monkeypatch):
    def fail(*_):
        raise RuntimeError("no scale here")

    monkeypatch.setattr("pyro_manifold.density.centring.CentredTarget.locations_and_scales", fail)
    with pytest.warns(UserWarning, match=r"The sites \['x'\] keep their coordinates, .*no scale here"):
        mcmc = run_of(funnel, 20, 200)
    assert mcmc.kernel.centredness == {}


@pytest.mark.long
def test_an_interrupted_choice_is_made_again(monkeypatch):
    """At the end of a window, and the draws are those of a run without an interrupt."""
    expected = run_of(funnel, 20, 200).get_samples(group_by_chain=True)["x"]
    choose, calls = Centring.choose, []

    def interrupted(centring):
        calls.append(centring)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return choose(centring)

    monkeypatch.setattr(Centring, "choose", interrupted)
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(funnel), 20, 200, num_chains=4, disable_progbar=True)
    with pytest.warns(UserWarning, match="Interrupted"), pytest.raises(KeyboardInterrupt):
        mcmc.run()
    mcmc.continue_run(20)
    assert torch.equal(mcmc.get_samples(group_by_chain=True)["x"], expected)


@pytest.mark.long
def test_in_pyros_own_mcmc():
    pyro.set_rng_seed(0)
    mcmc = pyros.MCMC(OHMC(funnel), num_samples=400, warmup_steps=200, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)
    assert_mean((draws["logarithm"] / 3).square(), 1.0)
    relative = draws["x"] * (-draws["logarithm"] / 2).exp().unsqueeze(-1)
    assert_mean(relative.square().mean(-1), 1.0)
