"""What warm-up tunes: windows, trajectory length, and the record of each iteration."""

import itertools
import math
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.adaptation import WarmupAdapter

from problems.monte_carlo import STANDARD_ERRORS
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.adaptation import (
    INITIAL_LENGTH,
    SHORTEST_LENGTH,
    ColumnEstimator,
    DiagonalEstimator,
    DualAveragingStepSize,
    LengthChoice,
    Masses,
    TrajectoryLength,
    of_all,
    windows,
)
from pyro_manifold.infer.mcmc.mechanics import State
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.compilers import native_code
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


def oscillator(position, length, frequencies):
    """Exact transitions on N(0, diag(1/frequencies²)) at unit mass: no step size, no rejection."""
    momentum = torch.randn_like(position)
    return position * (frequencies * length).cos() + momentum / frequencies * (frequencies * length).sin()


def state(position, frequencies):
    return State({("x",): position}, {}, 0.5 * (frequencies * position).square().sum(1), {})


def chosen(initial_length, frequencies, step, iterations=400, chains=16):
    lengths = TrajectoryLength(initial_length, 0.5)
    position = torch.randn(chains, len(frequencies)) / frequencies
    choice = LengthChoice(lengths, state(position, frequencies))
    for iteration in range(1, iterations + 1):
        length = choice.draw(iteration)
        following = step(position, length, frequencies)
        choice.update(length, max(1, int(length / 0.1)), state(position, frequencies), state(following, frequencies))
        position = following
    return lengths.mean


@pytest.mark.parametrize("initial_length", [0.5, 2 * math.pi, 20.0])
def test_length_chosen_on_gaussians_is_near_half_a_period(initial_length):
    """A quarter of a period is best for the energy, 2.4 for coordinates (by quadrature over the jitter)."""
    assert 1.2 < chosen(initial_length, torch.ones(4), oscillator) < 3
    assert 4 * 1.2 < chosen(initial_length, 0.25 * torch.ones(4), oscillator) < 4 * 3


def test_length_heeds_a_slow_direction():
    slow_among_fast = torch.tensor([0.2, 1.0, 1.0])
    assert chosen(2 * math.pi, slow_among_fast, oscillator) > 1.4 * chosen(2 * math.pi, torch.ones(3), oscillator)


def test_one_slow_direction_among_hundreds_is_heeded():
    """As a scale that all groups of a hierarchy share; the mean over coordinates would hardly notice it."""
    frequencies = torch.ones(300)
    frequencies[0] = 0.2
    assert chosen(math.pi, frequencies, oscillator) > 1.4 * chosen(math.pi, torch.ones(300), oscillator)


def test_no_length_below_a_quarter_of_a_period_is_chosen():
    """Where ε is the whole length, a step more costs more than it gains; but ε is not yet that of the draws."""
    lengths = TrajectoryLength(INITIAL_LENGTH, 0.5)
    choice = LengthChoice(lengths, state(torch.randn(64, 3), 1.0))
    for iteration in range(1, 401):
        before, after = (state(torch.randn(64, 3), 1.0) for _ in range(2))
        length = choice.draw(iteration)
        choice.update(length, max(1, int(length / 0.01)), before, after)
    assert SHORTEST_LENGTH <= lengths.mean < INITIAL_LENGTH


@pytest.mark.parametrize(("fixed_cost", "longer"), [(1.0, False), (1000.0, True)])
def test_trajectories_are_longer_where_steps_are_cheap_relative_to_iterations(fixed_cost, longer):
    """Fourth moments of the jump grow like the root of the length: worth a longer trajectory only if that is free."""
    lengths = TrajectoryLength(math.pi, 0.5)
    choice = LengthChoice(lengths, state(torch.randn(64, 3), 1.0))
    choice.fixed_cost = fixed_cost
    for iteration in range(1, 101):
        length, position = choice.draw(iteration), torch.randn(64, 3)
        after = State({("x",): position + length**0.25 * torch.randn(64, 3)}, {}, torch.randn(64), {})
        choice.update(length, max(1, int(length / 0.1)), state(position, 1.0), after)
    assert (lengths.mean > math.pi) == longer


@native_code
def test_native_code_estimates_the_cost_of_an_iteration_in_steps():
    costs = []
    for chains in (4, 64):
        ready = OHMC(concentrated).prepare(chains, 60, None)
        ready.policy.make(ready.state)
        costs.append(ready.tuning.length_choice.fixed_cost)
    assert costs[0] - 1 == pytest.approx(16 * (costs[1] - 1))
    assert costs[0] > 100


def test_lengths_are_tried_in_all_windows_but_the_first_two_and_the_last(monkeypatch):
    tried = []
    update = LengthChoice.update
    monkeypatch.setattr(
        LengthChoice, "update", lambda choice, *arguments: (tried.append(ready.iteration), update(choice, *arguments))
    )
    ready = OHMC(concentrated).prepare(2, 200, None)
    for _ in range(200):
        ready.advance()
    schedule = windows(200)
    assert tried == list(range(schedule[2].start + 1, schedule[-1].start + 1))


def test_a_length_is_filed_as_the_time_that_its_steps_take(monkeypatch):
    """While ε swings low, a trajectory of as many steps as it deserves is shorter than it was meant to be."""
    filed = []
    monkeypatch.setattr(LengthChoice, "update", lambda choice, *arguments: filed.append((*arguments[:2], step_size)))
    ready = OHMC(concentrated).prepare(1, 200, None)
    for _ in range(200):
        step_size = ready.tuning.step_size
        ready.advance()
    assert filed
    for length, num_steps, step_size in filed:
        assert num_steps * step_size <= max(length, step_size) * (1 + 1e-9)
        assert length <= (num_steps + 1) * step_size * (1 + 1e-9)


def test_lengths_heed_this_window_and_the_one_before():
    choice = LengthChoice(TrajectoryLength(INITIAL_LENGTH, 0.5), state(torch.zeros(4, 2), 1.0))
    for window, moved in enumerate((5.0, 1.0, 2.0)):
        if window:
            choice.end_window()
        for _ in range(3):
            choice.update(2.0, 7, state(torch.zeros(4, 2), 0.0), state(torch.full((4, 2), moved), 0.0))
    jumps, variances = of_all([choice._window, choice._window_before])
    ((found),) = jumps.values()
    assert (found.count, found.steps) == (6, 42)
    assert torch.allclose(found.moments[:2], torch.full((2,), 3 * (1.0 + 16.0)))
    assert torch.equal(variances, torch.zeros(3))  # within windows nothing varies


@pytest.mark.parametrize(("changed", "reset"), [(2.0, True), pytest.param(1.2, False, marks=pytest.mark.long)])
def test_a_length_for_other_masses_is_forgotten(monkeypatch, changed, reset):
    end_window, ends = Masses.end_window, []
    monkeypatch.setattr(Masses, "end_window", lambda masses: (ends.append(end_window(masses)), changed)[1])
    ready = OHMC(concentrated).prepare(4, 200, None)
    last = windows(200)[-1].start
    for _ in range(last):
        chosen = ready.tuning._lengths.mean = 7.0
        ready.advance()
    assert len(ends) == len(windows(200)) - 2
    assert (ready.tuning.trajectory_length == INITIAL_LENGTH) == reset
    assert reset or ready.tuning.trajectory_length > chosen / 2.1


def test_masses_report_how_much_they_changed():
    block = ("x",)
    masses = Masses({block: partial(DiagonalEstimator, torch.zeros(4, 2))})
    for _ in range(500):
        position = torch.tensor([1.0, 8.0]) * torch.randn(4, 2)
        masses.update({block: position}, {block: position / torch.tensor([1.0, 64.0])})
    assert masses.end_window() == pytest.approx(math.exp(math.log(8) / 2**0.5), rel=0.1)
    assert masses.inverse_mass_matrix[block][1] == pytest.approx(64, rel=0.1)


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


def test_steps_do_not_multiply_while_the_step_size_swings():
    ready = OHMC(concentrated).prepare(4, 300, None)
    for _ in range(100):
        ready.advance()
    usual = ready.tuning.settings(101).num_steps
    ready.tuning._step_size.value /= 1000
    assert ready.tuning.settings(101).num_steps < 2 * usual + 2


@pytest.mark.parametrize("where", [0.0, 1e3])
def test_a_few_points_give_the_variances_of_independent_gaussians(where):
    """Wherever they are; up to the shrinkage of the first draws."""
    variances = torch.tensor([1e-2, 1.0, 100.0])
    estimator = DiagonalEstimator(torch.zeros(4, 3))
    for _ in range(200):
        position = where + 0.3 * variances.sqrt() * torch.randn(4, 3)
        estimator.update(position, position / variances)
    assert torch.allclose(estimator.estimate()[0], variances, rtol=0.3)


def test_no_gradient_leaves_what_draws_say():
    estimator = DiagonalEstimator(torch.zeros(4, 2))
    for _ in range(20):
        estimator.update(torch.randn(4, 2), torch.zeros(4, 2))
    assert (estimator.estimate() > 0.5).all()
    assert (estimator.estimate() < 60).all()


@pytest.mark.parametrize("rare", ["long", "short"])
def test_rare_far_jumps_count_for_more_than_a_walk_of_the_same_mean_square(rare):
    """At equal steps; by second moments of the jump the two would be alike. Tried with 24 seeds: 24 right ones."""
    lengths = TrajectoryLength(math.pi, 0.1)
    choice = LengthChoice(lengths, state(torch.randn(16, 2), 1.0))
    for iteration in range(1, 101):
        length, position = choice.draw(iteration), torch.randn(16, 2)
        jumps = torch.randn(16, 2)
        if (length > math.pi) == (rare == "long"):
            jumps = jumps.sign() * 20**0.5 * (torch.rand(16, 2) < 1 / 20)
        after = State({("x",): position + jumps}, {}, torch.randn(16), {})
        choice.update(length, 5, state(position, 1.0), after)
    assert (lengths.mean > math.pi) == (rare == "long")


@pytest.mark.long
def test_length_is_chosen_by_the_kernel_and_kept_if_given():
    chosen_length = run(OHMC(concentrated), num_samples=5, warmup_steps=300, num_chains=16).kernel.trajectory_length
    assert 1 < chosen_length < 5
    given = run(OHMC(concentrated, trajectory_length=1.0), num_samples=5, warmup_steps=150, num_chains=16).kernel
    assert given.trajectory_length == 1.0
    steps = run(OHMC(concentrated, step_size=0.1, num_steps=7), num_samples=5, warmup_steps=150).kernel
    assert int(steps.run.statistics["n_steps"][0]) == max(1, int(0.7 / steps.step_size + 1e-6))


@pytest.mark.long
def test_a_second_run_starts_from_the_same_length():
    mcmc = run(OHMC(concentrated), num_samples=5, warmup_steps=200, num_chains=16)
    mcmc.kernel.run = mcmc.kernel.prepare(2, 100, None)
    assert mcmc.kernel.trajectory_length == pytest.approx(INITIAL_LENGTH)


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
        under_way.tuning._backoff.share.fill_(0.01)
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
    run.tuning._step_size.value = 1.5
    run.tuning._step_size.restart(1.5)
    for _ in range(60):
        run.advance()
    assert run.tuning.step_size < 0.4


def test_masses_of_columns_are_the_mean_curvatures_of_their_directions():
    """U = -tr FᵀX at uniform X: m_k = ‖f_k‖²/n + d/p, and within the span 2‖F‖²/(np) + d/p."""
    n, p, chains = 5, 3, 100_000
    F = torch.randn(n, p) * torch.tensor([10.0, 3.0, 1.0])
    estimator = ColumnEstimator(torch.zeros(chains, n, p))
    own = Stiefel().dimension(n, p) / p
    assert torch.allclose(1 / estimator.initial(), torch.tensor(own))
    estimator.update(Stiefel().random_point(chains, n, p), -F.expand(chains, n, p))
    masses = 1 / estimator.estimate()
    squares = F.square().sum(0)
    truths = torch.cat([squares / n, 2 * squares.sum().reshape(1) / (n * p)]) + own
    for mass, truth in zip(masses.T, truths, strict=True):
        # Shrunk towards the mean of all chains, which are independent here: the mean is that of all.
        assert abs(mass.mean() - truth) < STANDARD_ERRORS * 6 * mass.std() / chains**0.5  # spread is 1/6 after one draw


def test_masses_of_columns_belong_to_chains_and_trust_the_others_while_draws_are_few():
    estimator = ColumnEstimator(torch.zeros(2, 4, 2))
    X = torch.eye(4, 2).expand(2, 4, 2)
    gradient = torch.zeros(2, 4, 2)
    gradient[0, 3, 0] = gradient[1, 3, 1] = 10.0  # the chains have their columns in another order
    own = Stiefel().dimension(4, 2) / 2
    for draws, share in ((5, 0.5), (15, 0.75)):
        while estimator._count < draws:
            estimator.update(X * (-1) ** estimator._count, gradient)  # chains that move
        steep, flat = 50 * (share + (1 - share) / 2) + own, 50 * (1 - share) / 2 + own
        assert torch.allclose(1 / estimator.estimate(), torch.tensor([[steep, flat, own], [flat, steep, own]]))


def test_the_order_of_sites_does_not_matter_to_lengths():
    """It is another one in a run that is restored."""
    values = {("a",): torch.randn(8, 2), ("b",): torch.randn(8, 3)}
    energy, means = torch.randn(8), []
    for turned in (False, True):
        choice = LengthChoice(TrajectoryLength(INITIAL_LENGTH, 0.5), State(values, {}, energy, {}))
        after = {block: x + 1 for block, x in values.items()}
        before = dict(reversed(values.items())) if turned else values
        choice.update(2.0, 3, State(before, {}, energy, {}), State(after, {}, energy + 1, {}))
        means.append(next(iter(choice._window.jumps.values())).moments)
    assert torch.equal(*means)
    assert torch.allclose(means[0], torch.ones(6))


def column_masses(curvatures):
    """Inverse masses found from forces of such curvature, ``(chains, columns)``, of chains that always move."""
    torch.manual_seed(0)
    chains, p = curvatures.shape
    estimator = ColumnEstimator(torch.eye(6, p).expand(chains, 6, p))
    for _ in range(200):
        position = torch.linalg.qr(torch.randn(chains, 6, p)).Q
        estimator.update(position, torch.randn(chains, 6, p) * curvatures.sqrt().unsqueeze(1))
    return estimator.estimate()[:, :p]


def test_masses_of_exchangeable_columns_are_each_chains_own():
    orders = torch.stack([torch.randperm(3) for _ in range(9)])
    curvatures = torch.tensor([1000.0, 100.0, 10.0])[orders]
    inverse = column_masses(curvatures)
    # 4 is the manifold's own; 5/205 of the mean of the others comes to each, at most twice the smallest.
    assert ((inverse * (curvatures + 4)).log().abs() < 1.0).all()


def test_a_chain_that_learns_in_a_flat_region_has_masses_for_a_steep_one():
    curvatures = torch.full((9, 3), 100.0)
    curvatures[4] = 0.01
    inverse = column_masses(curvatures)
    assert (inverse[4] < 3 / 100).all()


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
