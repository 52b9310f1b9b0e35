"""Runs that stop by a goal, and chains that share starts."""

import itertools

import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch

from pyro_manifold.diagnostics import convergence, nested_r_hat
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, OSGHMC, Superchains, Until
from pyro_manifold.infer.mcmc.running import Goal
from tests.infer.models import concentrated


def run(kernel, *args, num_chains=4, data_loader=None, **options):
    mcmc = MCMC(kernel, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run(*args, data_loader=data_loader)
    return mcmc


def measured(mcmc):
    """Smallest effective sample size and largest R-hat of entries and log density."""
    values = [*mcmc.get_samples(group_by_chain=True).values(), mcmc.get_extra_fields(group_by_chain=True)["lp"]]
    found = [convergence(value) for value in values]
    sizes = [each[name].min() for each in found for name in ("ess_bulk", "ess_tail")]
    return float(min(sizes)), float(max(each["r_hat"].max() for each in found))


def fast(model=concentrated, **options):
    return OHMC(model, trajectory_length=1.5, **options)


def test_a_run_stops_when_every_entry_has_reached_the_goal():
    mcmc = run(fast(), num_samples=20, warmup_steps=100, until={"ess": 500, "rhat": 1.01})
    size, rhat = measured(mcmc)
    assert size >= 500
    assert rhat <= 1.01
    draws = mcmc.num_samples
    assert mcmc.get_samples(group_by_chain=True)["U"].shape == (4, draws, 4, 2)
    assert mcmc.stopped == (
        f"Stopped at {draws} draws of each chain, with ess ≥ 500 and rhat ≤ 1.01 for every site and the log density."
    )
    # At the last check but one it had not: at most half of the draws were needed for nothing.
    assert 20 < draws < 2 * 500


def test_it_is_a_fixed_run_of_as_many_draws(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # which begins where enough iterations are planned
    pyro.set_rng_seed(3)
    some = run(fast(), num_samples=20, warmup_steps=50, until={"ess": 100})
    pyro.set_rng_seed(3)
    fixed = run(fast(), num_samples=some.num_samples, warmup_steps=50)
    assert torch.equal(some.get_samples()["U"], fixed.get_samples()["U"])
    assert some.get_extra_fields().keys() == fixed.get_extra_fields().keys()


def test_what_stops_a_run_that_does_not_arrive():
    """Two modes that no chain leaves."""

    def apart():
        x = pyro.sample("x", dist.Normal(0.0, 1e4))
        pyro.factor("modes", torch.logaddexp(-0.5 * x.square(), -0.5 * (x - 60.0).square()))

    start = {"x": torch.tensor([0.0, 60.0, 0.0, 60.0])}
    kernel = OHMC(apart, step_size=0.5, num_steps=3, adapt_step_size=False)
    options = {"warmup_steps": 0, "initial_params": start, "until": Until(rhat=1.01, max_samples=90)}
    with pytest.warns(UserWarning, match=r"max_samples, 90 draws of each chain, .* the worst is x with rhat \d+\.\d+"):
        mcmc = run(kernel, num_samples=10, **options)
    assert mcmc.num_samples == 90
    assert "before rhat ≤ 1.01" in mcmc.stopped


def axes(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([2]).to_event(1))
    covariance = (U * scales.square()[..., None, :]) @ U.mT + 0.25 * torch.eye(4)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(4), covariance), obs=y)


@pytest.mark.long
def test_columns_known_up_to_signs_and_order_do_not_keep_a_run_going(capsys):
    """Chains begin at the four mirror images of a mode, thousands of nats from each other by the way between them."""
    y = torch.randn(60, 4) * torch.tensor([4.0, 2.0, 0.5, 0.5])
    signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    start = {"U": torch.eye(4, 2) * signs.unsqueeze(1), "scales": torch.tensor([4.0, 2.0]).log().expand(4, 2)}
    until = Until(ess=200, rhat=1.02, max_samples=1500)
    mcmc = run(OHMC(axes), y, num_samples=50, warmup_steps=100, initial_params=start, until=until)
    assert mcmc.stopped.startswith(f"Stopped at {mcmc.num_samples} draws of each chain, with ess ≥ 200")
    U = mcmc.get_samples(group_by_chain=True)["U"]
    assert torch.equal(U[..., [0, 1], [0, 1]].sign(), signs.unsqueeze(1).expand(4, mcmc.num_samples, 2))
    assert float(convergence(U)["r_hat"].max()) > 1.1, "the entries themselves do not agree"
    mcmc.summary()
    printed = capsys.readouterr().out
    assert "ess_tail" in printed
    assert printed.endswith(mcmc.stopped + "\n")


def normal(y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 40, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.long
def test_a_goal_of_data_in_parts_and_of_sites_that_are_not_kept():
    kernel, loader = OSGHMC(normal, step_size=0.05, num_steps=10), list(torch.randn(40).split(10))
    options = {"num_samples": 20, "warmup_steps": 100, "until": {"ess": 100}, "thinning": 2}
    mcmc = run(kernel, num_chains=8, data_loader=loader, save_params=[], **options)
    assert "with ess ≥ 100" in mcmc.stopped
    assert measured(mcmc)[0] >= 100


def test_an_interrupt_keeps_the_draws():
    def interrupt(iteration):
        if iteration.stage == "Sample" and iteration.index == 30:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Interrupted: kept 31 of 10000 draws"):
        mcmc = run(fast(), num_samples=20, warmup_steps=20, until={"ess": 1e9}, consumers=[interrupt])
    assert mcmc.get_samples()["U"].shape == (4 * 31, 4, 2)
    assert mcmc.stopped is None


def test_few_looks_and_none_far_behind():
    goal = Goal(Until(ess=400), None, dict, 100)
    draws = torch.randn(4, 10_000, 3)
    looks = []
    while not goal.reached and len(looks) < 20:
        looks.append(goal.next)
        # Effective sizes of a tenth: ten of each draw.
        goal.check({"x": draws[:, : goal.next].repeat_interleave(10, 1)[:, : goal.next]})
    assert len(looks) < 8
    growth = [later / earlier for earlier, later in itertools.pairwise(looks)]
    assert all(1.2 <= each <= 2.01 for each in growth)


@pytest.mark.parametrize("value", [torch.ones(4, 50), torch.full((4, 50), torch.nan)])
def test_what_does_not_move_or_is_not_finite_reaches_nothing(value):
    goal = Goal(Until(ess=1, rhat=2.0), None, dict, 10)
    assert not goal.check({"x": value})
    assert "before" in goal.sentence(50, 100)


def test_superchains_begin_together(capsys):
    mcmc = run(fast(), num_chains=Superchains(3, size=4), num_samples=10, warmup_steps=20)
    draws = mcmc.get_samples(group_by_chain=True)["U"]
    expected = nested_r_hat(draws, 3)
    torch.testing.assert_close(mcmc.diagnostics()["U"]["nested_r_hat"], expected)
    mcmc.summary()
    assert "nested_r_hat" in capsys.readouterr().out
    # No step at all shows where they began.
    kernel = OHMC(concentrated, step_size=1e-9, num_steps=1, adapt_step_size=False)
    still = run(kernel, num_chains=Superchains(3, size=4), num_samples=4, warmup_steps=0)
    places = still.get_samples(group_by_chain=True)["U"][:, 0].unflatten(0, (3, 4))
    assert (places - places[:, :1]).abs().max() < 1e-6
    assert (places[1] - places[0]).abs().max() > 1e-2
    assert (places[2] - places[1]).abs().max() > 1e-2


def test_given_starts_of_superchains():
    start = {"x": torch.tensor([-50.0, 50.0])}

    def model():
        pyro.sample("x", dist.Normal(0.0, 100.0))

    kernel = OHMC(model, step_size=1e-3, num_steps=1, adapt_step_size=False)
    mcmc = run(kernel, num_chains=Superchains(2, size=3), num_samples=4, warmup_steps=0, initial_params=start)
    first = mcmc.get_samples(group_by_chain=True)["x"][:, 0]
    assert torch.allclose(first, start["x"].repeat_interleave(3), atol=0.1)
    with pytest.raises(ValueError, match=r"expected a leading dimension of 2, one initial value for each superchain"):
        MCMC(kernel, 4, num_chains=Superchains(2, size=3), initial_params={"x": torch.zeros(6)})


BAD = {
    "until=": ({"until": {}}, "until has no goal"),
    "other goals": ({"until": {"esss": 400}}, r"until=\{'esss': 400\}, expected goals such as Until\("),
    "no goals": ({"until": 400}, "until=400, expected goals"),
    "rhat": ({"until": {"rhat": 1.0}}, r"until\['rhat'\]=1.0, expected a number above 1"),
    "ess": ({"until": {"ess": "many"}}, r"until\['ess'\]='many', expected a number above 0"),
    "nested": (
        {"until": {"nested_rhat": 1.01}},
        r"common initial values: pass num_chains=Superchains\(",
    ),
    "max_samples alone": ({"until": {"max_samples": 20}}, "until has no goal"),
    "max_samples": ({"until": {"ess": 4, "max_samples": 2.5}}, "max_samples=2.5, expected a positive integer"),
    "too few": (
        {"until": {"ess": 4, "max_samples": 20}, "num_samples": 30},
        "max_samples=20, expected at least num",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    options, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        MCMC(OHMC(concentrated), num_chains=4, **options)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (0, 4), (2, 0), (2.5, 4)])
def test_no_superchains(count, size):
    with pytest.raises(ValueError, match="expected"):
        Superchains(count, size)


def test_other_kernels_are_refused():
    with pytest.raises(ValueError, match="until needs chain_method='vectorized'"):
        MCMC(pyro.infer.NUTS(concentrated), until={"ess": 100})
