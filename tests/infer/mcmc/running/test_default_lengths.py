"""`MCMC(kernel).run()` with no length: four chains until R-hat and effective sample sizes suffice."""

from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch

from pyro_manifold.diagnostics import convergence
from pyro_manifold.infer import MCMC, OHMC, SGHMC, Shards, Superchains, Until
from pyro_manifold.infer.mcmc.running import goal
from tests.infer.mcmc.random_walk import RandomWalk
from tests.infer.models import concentrated

QUIET = {"disable_progbar": True}
SHORT = {**QUIET, "warmup_steps": 60}
GOAL = "with ess ≥ 400 and rhat ≤ 1.01 for every site and the log density."


def entry():
    pyro.sample("x", dist.Normal(1.0, 2.0))


def observed():
    pyro.sample("y", dist.Normal(pyro.sample("x", dist.Normal(0.0, 1.0)), 0.5), obs=torch.tensor(1.0))


def two_sites():
    entry()
    pyro.sample("scale", dist.HalfNormal(1.0))


def without_sites():
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))


def ran(kernel, data_loader=None, **options):
    mcmc = MCMC(kernel, **options)
    mcmc.run(data_loader=data_loader)
    return mcmc


def figures(mcmc):
    """Return the smallest effective sample size and the largest R-hat of sites and log density."""
    values = [*mcmc.get_samples(group_by_chain=True).values(), mcmc.get_extra_fields(group_by_chain=True)["lp"]]
    found = [convergence(value) for value in values]
    return (
        min(float(each[name].min()) for each in found for name in ("ess_bulk", "ess_tail")),
        max(float(each["r_hat"].max()) for each in found),
    )


def test_a_kernel_alone_runs_until_its_draws_suffice(capsys):
    mcmc = MCMC(OHMC(concentrated))
    mcmc.run()
    assert (mcmc.num_chains, mcmc.warmup_steps) == (4, 500)
    assert mcmc.get_samples(group_by_chain=True)["U"].shape == (4, mcmc.num_samples, 4, 2)
    assert mcmc.stopped == f"Stopped at {mcmc.num_samples} draws of each chain, {GOAL}"
    ess, rhat = figures(mcmc)
    assert ess >= 400
    assert rhat <= 1.01
    mcmc.summary()
    assert capsys.readouterr().out.endswith(mcmc.stopped + "\n")


def test_a_bound_that_comes_first_is_one_sentence_of_warning(monkeypatch):
    monkeypatch.setattr(goal, "_MOST_SAMPLES", 120)
    with pytest.warns(UserWarning, match="Stopped at max_samples, 120 draws of each chain, before ess ≥ 400") as record:
        mcmc = ran(RandomWalk(entry), **SHORT)
    assert [str(warning.message) for warning in record] == [mcmc.stopped]
    assert ": the worst is " in mcmc.stopped
    assert mcmc.stopped.endswith("and continue_run(num_samples) adds draws.")
    assert ". " not in mcmc.stopped
    assert mcmc.num_samples == 120


def test_the_bound_is_ten_thousand_draws():
    assert MCMC(OHMC(entry))._most_samples == 10_000


@pytest.mark.parametrize(
    ("options", "chains", "warmup"),
    [
        ({}, 4, 500),
        ({"num_chains": 8}, 8, 500),
        ({"num_chains": 1}, 1, 500),
        ({"warmup_steps": 200}, 4, 200),
        ({"num_chains": 3, "warmup_steps": 0}, 3, 0),
        ({"thinning": 5, "save_params": [], "tempering": True}, 4, 500),
    ],
)
def test_what_is_not_given_has_its_default(options, chains, warmup):
    mcmc = MCMC(OHMC(entry), **options)
    assert (mcmc.num_chains, mcmc.warmup_steps) == (chains, warmup)
    assert mcmc._until == Until(ess=400, rhat=1.01)


@pytest.mark.parametrize(
    "options", [{"num_samples": 50}, {"until": {"ess": 30}}, {"num_samples": 20, "num_chains": None}]
)
def test_with_a_length_or_a_goal_there_is_one_chain(options):
    mcmc = MCMC(OHMC(entry), **options)
    assert mcmc.num_chains == 1
    assert mcmc._until == (Until(ess=30) if "until" in options else None)


def test_superchains_run_until_nested_r_hat():
    mcmc = MCMC(OHMC(entry), num_chains=Superchains(4, size=8), **SHORT)
    mcmc.run()
    assert mcmc.num_samples == 100
    assert "with ess ≥ 400 and nested_rhat ≤ 1.01 for every site" in mcmc.stopped


@pytest.mark.parametrize(
    ("kernel", "options", "why"),
    [
        (pyro.infer.NUTS, {}, "NUTS, which is not a kernel of this package"),
        (OHMC, {"chain_method": "parallel", "num_chains": 4}, "chain_method='parallel'"),
        (OHMC, {"chain_method": "sequential"}, "chain_method='sequential'"),
        (OHMC, {"chain_method": Shards(ThreadPoolExecutor, 2), "num_chains": 4}, r"chain_method=Shards\(\.\.\.\)"),
    ],
)
def test_where_runs_cannot_stop_by_themselves_a_length_is_needed(kernel, options, why):
    with pytest.raises(ValueError, match=f"^MCMC needs num_samples with {why}: pass it, such as num_samples=1000.$"):
        MCMC(kernel(entry), **options)


def test_replica_exchange_runs_until_the_goal():
    mcmc = ran(OHMC(observed), tempering=True, **SHORT)
    assert mcmc.num_chains == 4
    assert GOAL in mcmc.stopped


@pytest.mark.long
def test_a_stored_run_continues_to_the_goal_and_is_then_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # which begins where enough iterations are planned

    def interrupt(iteration):
        if iteration.stage == "Sample" and iteration.index == 30:
            raise KeyboardInterrupt

    pyro.set_rng_seed(1)
    whole = ran(OHMC(entry), **SHORT)
    pyro.set_rng_seed(1)
    with pytest.warns(UserWarning, match="Interrupted: kept 31 of 10000 draws"):
        ran(OHMC(entry), consumers=[interrupt], store=tmp_path, **SHORT)
    for _ in range(2):  # the second one finds the goal reached
        resumed = ran(OHMC(entry), store=tmp_path, resume=True, **SHORT)
        assert resumed.stopped == whole.stopped
        assert resumed.num_samples == whole.num_samples
    with pytest.raises(ValueError, match="holds another run: chains"):
        ran(OHMC(entry), num_samples=50, store=tmp_path, resume=True, **SHORT)


def test_the_run_can_be_continued():
    mcmc = ran(OHMC(entry), **SHORT)
    before = mcmc.num_samples
    mcmc.continue_run(10)
    assert mcmc.num_samples == before + 10
    assert mcmc.stopped is None


def test_thinning_leaves_enough_draws_for_the_goal():
    mcmc = ran(OHMC(two_sites), thinning=3, save_params=["x"], **SHORT)
    assert mcmc.stopped.endswith("rhat ≤ 1.01 for 'x' and the log density.")
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (4, mcmc.num_samples)
    assert figures(mcmc)[0] >= 400
    assert MCMC(OHMC(entry), thinning=250)._requested_samples == 250


def test_sites_that_are_not_stored_are_not_claimed():
    draws = []
    options = {**SHORT, "consumers": [lambda iteration: draws.append(iteration.kept)]}
    mcmc = ran(OHMC(two_sites), save_params=[], **options)
    assert mcmc.stopped.endswith("rhat ≤ 1.01 for the log density.")
    assert sum(draws) == mcmc.num_samples


def test_without_sites_and_log_density_there_is_nothing_to_check():
    with pytest.raises(ValueError, match="store at least one site, or pass num_samples without until"):
        goal.Goal(Until(ess=4), None, dict, 10).check({})


def normal(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 40, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.long
def test_minibatches_without_a_metropolis_step():
    loader = list(torch.randn(40).split(20))
    mcmc = ran(SGHMC(normal, step_size=0.05, num_steps=10), loader, **SHORT)
    assert mcmc.num_chains == 4
    assert GOAL in mcmc.stopped


def test_initial_values_are_those_of_four_chains():
    start = {"x": torch.tensor([-3.0, -1.0, 1.0, 3.0])}
    assert GOAL in ran(OHMC(entry), initial_params=start, **SHORT).stopped
    with pytest.raises(ValueError, match=r"\['x'\] has shape \(3,\), expected a leading dimension of 4, one initial"):
        MCMC(OHMC(entry), initial_params={"x": torch.zeros(3)})
    assert MCMC(OHMC(entry), initial_params={"x": torch.zeros(3)}, num_chains=3).num_chains == 3
    # Four rows of one matrix are not taken for four chains.
    with pytest.raises(ValueError, match=r"'U': the initial value has shape \(2,\) .*, expected \(4, 2\)"):
        ran(OHMC(concentrated), initial_params={"U": torch.eye(4, 2)}, **SHORT)


def test_a_model_without_latent_sites():
    mcmc = ran(OHMC(without_sites), **SHORT)
    assert mcmc.get_samples() == {}
    assert mcmc.stopped == "Stopped at 100 draws of each chain, as the model has no latent site."
