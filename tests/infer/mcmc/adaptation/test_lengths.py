"""Trajectory lengths: the choice of their mean from transitions, and its place in warm-up."""

import math

import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.adaptation import (
    INITIAL_LENGTH,
    SHORTEST_LENGTH,
    LengthChoice,
    Masses,
    SlowDirection,
    TrajectoryLength,
    Transitions,
    of_all,
    windows,
)
from pyro_manifold.infer.mcmc.mechanics import State
from pyro_manifold.infer.mcmc.transitions import coordinates
from tests.infer.mcmc.compilers import native_code
from tests.infer.models import concentrated


def run(kernel, **options):
    mcmc = MCMC(kernel, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def oscillator(position, length, frequencies):
    """Exact transitions on N(0, diag(1/frequencies²)) at unit mass: no step size, no rejection."""
    momentum = torch.randn_like(position)
    return position * (frequencies * length).cos() + momentum / frequencies * (frequencies * length).sin()


def state(position, frequencies):
    return State({("x",): position}, {}, 0.5 * (frequencies * position).square().sum(1), {})


def chosen(initial_length, frequencies, step, iterations=400, chains=16, functionals=coordinates):
    lengths = TrajectoryLength(initial_length, 0.5)
    position = torch.randn(chains, len(frequencies)) / frequencies
    choice = LengthChoice(lengths, state(position, frequencies), functionals)
    for iteration in range(1, iterations + 1):
        length = choice.draw(iteration)
        following = step(position, length, frequencies)
        choice.update(length, max(1, int(length / 0.1)), state(position, frequencies), state(following, frequencies))
        position = following
        if iteration in (iterations // 4, iterations // 2):
            choice.end_window()
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


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_direction_is_heeded_that_is_no_coordinate(seed):
    """Of the variance of each of 100 coordinates it is a fifth, so that their jumps hardly depend on it."""
    torch.manual_seed(seed)
    rotation, frequencies = StiefelUniform(100, 100).sample(), torch.ones(100)
    frequencies[0] = 0.2
    rotated = chosen(math.pi, frequencies, oscillator, functionals=lambda found: coordinates(found) @ rotation)
    assert rotated > 1.4 * chosen(math.pi, torch.ones(100), oscillator)


def test_the_slow_direction_is_that_of_least_change():
    torch.manual_seed(0)
    rotation, frequencies = StiefelUniform(40, 40).sample(), torch.ones(40)
    frequencies[0] = 0.2
    position = torch.randn(8, 40) / frequencies
    found = SlowDirection(position)
    for _ in range(300):
        following = oscillator(position, 2.0, frequencies)
        found.add(position @ rotation, following @ rotation)
        position = following
    weights = (rotation @ found.find()) / frequencies  # of independent variables with variance 1
    assert weights[0].abs() > 0.95 * weights.norm()  # its correlation with the slow one
    assert weights.norm() == pytest.approx(1.0, rel=0.3)


def test_there_is_no_slow_direction_of_few_transitions_or_of_constants():
    found = SlowDirection(torch.zeros(2, 3))
    for _ in range(20):
        found.add(torch.randn(2, 3), torch.randn(2, 3))
    assert found.find() is None
    found.clear()
    for _ in range(300):
        found.add(torch.ones(2, 3), torch.ones(2, 3))
    assert found.find() is None
    assert SlowDirection(torch.zeros(1, 300_000)).find() is None


def test_the_slow_direction_is_found_from_every_second_transition_of_a_long_window():
    """As many are kept as fit, from all of the window; a restored object goes on as the first."""
    found, again = (SlowDirection(torch.zeros(2, 5)) for _ in range(2))
    for number in range(1500):
        if number == 700:
            again.load_state_dict(found.state_dict())
        values = torch.full((2, 5), float(number))
        for each in (found, again) if number >= 700 else (found,):
            each.add(values, values)
    kept = found._draws[: found._count, 0, 0, 0]
    assert torch.equal(kept, torch.arange(7.0, 1500.0, 8.0))
    assert torch.equal(kept, again._draws[: again._count, 0, 0, 0])


def test_no_length_below_a_quarter_of_a_period_is_chosen():
    """Where ε is the whole length, a step more costs more than it gains; but ε is not yet that of the draws."""
    lengths = TrajectoryLength(INITIAL_LENGTH, 0.5)
    choice = LengthChoice(lengths, state(torch.randn(64, 3), 1.0))
    for iteration in range(1, 401):
        before, after = (state(torch.randn(64, 3), 1.0) for _ in range(2))
        length = choice.draw(iteration)
        choice.update(length, max(1, int(length / 0.01)), before, after)
    assert SHORTEST_LENGTH <= lengths.mean < INITIAL_LENGTH


def length_at(fixed_cost, chains=256):
    """Mean length chosen where fourth moments of the jump grow like it, and an iteration costs so many steps more."""
    lengths = TrajectoryLength(math.pi, 0.5)
    choice = LengthChoice(lengths, state(torch.randn(chains, 3), 1.0))
    choice.fixed_cost = fixed_cost
    for iteration in range(1, 101):
        length, position = choice.draw(iteration), torch.randn(chains, 3)
        after = State({("x",): position + length**0.25 * torch.randn(chains, 3)}, {}, torch.randn(chains), {})
        choice.update(length, max(1, int(length / 0.1)), state(position, 1.0), after)
    return lengths.mean


def test_trajectories_are_longer_where_steps_are_cheap_relative_to_iterations():
    """Such a jump is worth a longer trajectory only if steps are nearly free."""
    assert length_at(1000.0) > 1.5 * length_at(1.0)


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


def test_lengths_heed_this_window_and_the_one_before():
    choice = LengthChoice(TrajectoryLength(INITIAL_LENGTH, 0.5), state(torch.zeros(4, 2), 1.0))
    for window, moved in enumerate((5.0, 1.0, 2.0)):
        if window:
            choice.end_window()
        for _ in range(3):
            choice.update(2.0, 7, state(torch.zeros(4, 2), 0.0), state(torch.full((4, 2), moved), 0.0))
    choice.choose()
    jumps, variances = of_all([choice._window, choice._window_before])
    ((found),) = jumps.values()
    assert (found.count, found.steps) == (6, 42)
    assert torch.allclose(found.moments[:2], torch.full((2,), 3 * (1.0 + 16.0)))
    assert torch.equal(variances, torch.zeros(3))  # within windows nothing varies


def test_transitions_added_together_are_those_added_one_by_one():
    bins, steps = torch.randint(0, 3, (30,)).tolist(), torch.randint(1, 9, (30,)).tolist()
    previous, values, moved = torch.randn(30, 4, 3), torch.randn(30, 4, 3), torch.rand(30, 4) > 0.6
    found, expected = Transitions(values[0]), Transitions(values[0])
    for rows in (slice(10), slice(10, 30)):
        found.add(bins[rows], steps[rows], previous[rows], values[rows], moved[rows])
    for k in range(30):
        expected.add(bins[k : k + 1], steps[k : k + 1], previous[k : k + 1], values[k : k + 1], moved[k : k + 1])
    assert torch.allclose(found.squares, (values - values.mean(0)).square().sum(0).mean(0))
    assert torch.allclose(found.squares, expected.squares)
    assert found.jumps.keys() == expected.jumps.keys()
    for index, jumps in expected.jumps.items():
        assert (found.jumps[index].count, found.jumps[index].steps) == (jumps.count, jumps.steps)
        assert torch.allclose(found.jumps[index].moments, jumps.moments)


def test_the_order_of_sites_does_not_matter_to_lengths():
    """It is another one in a run that is restored."""
    values = {("a",): torch.randn(8, 2), ("b",): torch.randn(8, 3)}
    energy, means = torch.randn(8), []
    for turned in (False, True):
        choice = LengthChoice(TrajectoryLength(INITIAL_LENGTH, 0.5), State(values, {}, energy, {}))
        after = {block: x + 1 for block, x in values.items()}
        before = dict(reversed(values.items())) if turned else values
        choice.update(2.0, 3, State(before, {}, energy, {}), State(after, {}, energy + 1, {}))
        choice.choose()
        means.append(next(iter(choice._window.jumps.values())).moments)
    assert torch.equal(*means)
    assert torch.allclose(means[0], torch.ones(6))


@native_code
def test_native_code_estimates_the_cost_of_an_iteration_in_steps():
    costs = []
    for chains in (4, 64):
        ready = OHMC(concentrated).prepare(chains, 60, None)
        ready.policy.make(ready.state)
        costs.append(ready.tuning.lengths.choice.fixed_cost)
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


@pytest.mark.parametrize(("changed", "reset"), [(2.0, True), pytest.param(1.2, False, marks=pytest.mark.long)])
def test_a_length_for_other_masses_is_forgotten(monkeypatch, changed, reset):
    estimate, ends = Masses.estimate, []

    def estimated(masses):
        estimate(masses)
        ends.append(masses.change)
        masses.change = changed

    monkeypatch.setattr(Masses, "estimate", estimated)
    ready = OHMC(concentrated).prepare(4, 200, None)
    last = windows(200)[-1].start
    for _ in range(last):
        chosen = ready.tuning.lengths.distribution.mean = 7.0
        ready.advance()
    assert len(ends) == len(windows(200)) - 2
    assert (ready.tuning.trajectory_length == INITIAL_LENGTH) == reset
    assert reset or ready.tuning.trajectory_length > chosen / 2.1


def test_steps_do_not_multiply_while_the_step_size_swings():
    ready = OHMC(concentrated).prepare(4, 300, None)
    for _ in range(100):
        ready.advance()
    usual = ready.tuning.settings(101).num_steps
    ready.tuning.step_sizes.rule.value /= 1000
    assert ready.tuning.settings(101).num_steps < 2 * usual + 2


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
