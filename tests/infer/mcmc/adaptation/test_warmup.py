"""Windows and step sizes of warm-up, and the record of each iteration."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.adaptation import WarmupAdapter

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.adaptation import DualAveragingStepSize, windows
from tests.infer.models import concentrated


def run(kernel, **options):
    mcmc = MCMC(kernel, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


@pytest.mark.parametrize("warmup_steps", [10, 60, 149, 150, 200, 351, 1000, 5000])
def test_windows_cover_the_warm_up_and_grow(warmup_steps):
    schedule = windows(warmup_steps)
    assert [iteration for window in schedule for iteration in window] == list(range(warmup_steps))
    sizes = [len(window) for window in schedule[1:-1]]
    assert all(size >= 10 for size in sizes) or warmup_steps < 100
    assert all(1.3 < right / left < 1.7 for left, right in itertools.pairwise(sizes))
    assert schedule[-1].start > warmup_steps / 2 or warmup_steps < 20


@pytest.mark.parametrize("warmup_steps", [10, 19, 20, 60, 149])
def test_windows_of_short_warm_ups_are_those_of_pyro(warmup_steps):
    adapter = WarmupAdapter(adapt_step_size=True, adapt_mass_matrix=True)
    adapter.configure(warmup_steps, mass_matrix_shape={})
    assert [(window[0], window[-1]) for window in windows(warmup_steps)] == [
        tuple(w) for w in adapter.adaptation_schedule
    ]


def test_a_step_size_that_is_saved_continues_the_same():
    step_size, again = DualAveragingStepSize(0.3, 0.8, (1e-10, 1e10)), DualAveragingStepSize(1.0, 0.8, (1e-10, 1e10))
    for probability in torch.rand(30).tolist():
        again.load_state_dict(step_size.state_dict())
        for each in (step_size, again):
            each.update(probability)
        assert (step_size.value, step_size.typical) == (again.value, again.typical)
    step_size.restart(0.3)
    assert step_size.value == pytest.approx(0.3)
    assert step_size.typical == pytest.approx(0.15)


@pytest.mark.long
def accepted(step_size, chains):
    """Return the mean acceptance probability of chains whose energy errors are normal, 0.9 at a step size of 1."""
    spread = 0.252 * step_size**2
    return float((-(spread**2 / 2 + spread * torch.randn(chains))).exp().clamp(max=1).mean())


@pytest.mark.parametrize("chains", [1, 4])
def test_the_step_size_of_few_chains_is_hardly_shorter(chains):
    """The average over 200 adaptations of 50 iterations, whose standard error is 0.01; 0.19 with γ = 0.05."""
    found = []
    for _ in range(200):
        step_size = DualAveragingStepSize(1.0, 0.9, (1e-10, 1e10), chains)
        for _ in range(50):
            step_size.update(accepted(step_size.value, chains))
        step_size.settle()
        found.append(math.log(step_size.value))
    assert -0.11 < sum(found) / len(found) < 0.03


@pytest.mark.long
def test_warm_up_costs_no_more_than_as_many_draws():
    steps = []
    run(
        OHMC(concentrated),
        num_samples=300,
        warmup_steps=300,
        num_chains=4,
        consumers=[lambda iteration: steps.append(int(iteration.statistics["n_steps"][0]))],
    )
    assert sum(steps[:300]) < 1.2 * sum(steps[300:])


def test_every_iteration_is_recorded():
    mcmc = run(OHMC(concentrated), num_samples=40, warmup_steps=60, num_chains=3)
    statistics = {name: value[1] for name, value in mcmc.get_extra_fields(group_by_chain=True).items()}
    assert set(statistics) >= {"acceptance_rate", "diverging", "energy", "lp", "n_steps", "orthogonality_error"}
    assert {value.shape for value in statistics.values()} == {torch.Size([40])}
    draws = mcmc.get_samples(group_by_chain=True)["U"][1]
    assert torch.allclose(statistics["lp"], 4 * draws[:, 0, 0] + 3 * draws[:, 1, 1], atol=1e-8)
    # Kinetic energy is chi-squared: its mean is half the degrees of freedom of V(4, 2).
    assert (statistics["energy"] + statistics["lp"] > 0).all()


def test_chains_that_disagree_are_named():
    def wells():
        x = pyro.sample("x", dist.Normal(0.0, 100.0))
        pyro.sample("U", StiefelUniform(3, 1))
        pyro.factor("wells", torch.logaddexp(-50 * (x - 3) ** 2, 2 - 50 * (x + 3) ** 2))

    starts = {"x": torch.tensor([3.0, 3.0, -3.0, 3.0]), "U": torch.eye(3, 1).expand(4, 3, 1).clone()}
    kernel = OHMC(wells, step_size=0.1, num_steps=5, adapt_step_size=False, adapt_mass_matrix=False)
    mcmc = run(kernel, num_samples=100, warmup_steps=0, num_chains=4, initial_params=starts)
    report = mcmc.diagnostics()["disagreeing_chains"]
    assert "chain 2" in report["x"]
    assert "chain 2" in report["log_density"]


@pytest.mark.parametrize("chains", [1, 4])
def test_chains_that_never_moved_are_reported(chains):
    """A step far too long in float32: every proposal diverges, and no statistic but acceptance shows it."""
    kernel = OHMC(lambda: pyro.sample("x", dist.Normal(0.0, 1e-3)), step_size=10.0, adapt_step_size=False)
    with pytest.warns(UserWarning, match=r"moved in fewer than 5 % of iterations.*init_strategy"):
        mcmc = run(kernel, num_samples=20, warmup_steps=0, num_chains=chains)
    if chains > 1:
        assert mcmc.diagnostics()["disagreeing_chains"]["x"] == "chains 0, 1, 2 and 3 never moved"


def test_a_chain_of_pyro_that_never_moved_is_reported():
    kernel = pyro.infer.HMC(lambda: pyro.sample("x", dist.Normal(0.0, 1e-3)), step_size=10.0, adapt_step_size=False)
    with pytest.warns(UserWarning, match="The chain moved in fewer than 5 % of iterations"):
        run(kernel, num_samples=20, warmup_steps=0)


@pytest.mark.parametrize("far", [pytest.param(1, marks=pytest.mark.long), 8])
def test_chains_that_start_far_away_neither_stay_there_nor_hold_up_the_others(far):
    """A quartic well: far out the step must be a hundredth of the one that suits the middle."""

    def well():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1).mask(False))
        pyro.factor("well", -x.pow(4).sum())

    starts = 0.3 * torch.randn(16, 3)
    starts[:far] = 100.0
    mcmc = run(OHMC(well), num_samples=50, warmup_steps=150, num_chains=16, initial_params={"x": starts})
    assert mcmc.get_samples()["x"].abs().max() < 3
    everywhere = run(OHMC(well), num_samples=50, warmup_steps=150, num_chains=16)
    assert mcmc.kernel.step_size == pytest.approx(everywhere.kernel.step_size, rel=0.5)


def test_the_last_window_makes_no_allowance():
    """What needs a small step for ever, not only on the way, is seen before the draws."""
    under_way = OHMC(concentrated).prepare(4, 100, None)
    shares = []
    for _ in range(100):
        under_way.tuning.step_sizes.share.fill_(0.01)
        step_size = under_way.tuning.step_size
        under_way.advance()
        shares.append(float(under_way.statistics["step_size"].mean()) / step_size)
    assert shares == pytest.approx([0.01] * 90 + [1.0] * 10)


def test_without_warm_up_the_step_size_that_was_found_is_settled():
    """The search stops where a step is no longer accepted; half of that is one that is."""
    mcmc = run(
        OHMC(lambda: pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))), num_samples=100, warmup_steps=0
    )
    assert mcmc.diagnostics()["acceptance_rate"]["chain 0"] > 0.5


@pytest.mark.long
def test_a_step_size_that_no_chain_accepts_is_reduced():
    """In many dimensions it may be far too long for all, and each chain goes wrong again before it has recovered."""

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(10_000), 1.0).to_event(1))

    options = {"num_steps": 4, "adapt_mass_matrix": False, "init_strategy": init_to_sample}
    run = OHMC(model, **options).prepare(4, 100, None)
    run.advance()
    run.tuning.step_sizes.rule.restart(1.5)
    for _ in range(60):
        run.advance()
    assert run.tuning.step_size < 0.4


@pytest.mark.long
def test_no_chain_of_many_stays_for_good():
    """Some learn about the other sign of the matrix, where its size is near zero and nothing pulls."""
    y = torch.tensor([[1.5, 0.3], [-0.8, 1.2], [0.4, 1.6]])

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        scale = pyro.sample("scale", dist.HalfNormal(3.0))
        pyro.sample("y", dist.Normal(scale * U, 0.3).to_event(2), obs=y)

    mcmc = MCMC(OHMC(model), 40, 200, num_chains=768, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_extra_fields(group_by_chain=True)["accepted"].any(1).all()
