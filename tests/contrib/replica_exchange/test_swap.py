"""Swaps alone, with exact draws at every level."""

import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.contrib.replica_exchange import BETA, Counts, ReplicaSettings, Swap
from tests.contrib.replica_exchange.gaussian_path import SCALE, X, draws, even_ladder, potential, precision, rejection

LEVELS = 6


def settings(iteration, fresh=None):
    return ReplicaSettings(torch.ones(1), 1, {}, parity=iteration % 2, fresh=fresh)


def swapped(state, times, levels=LEVELS):
    random = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    swap = Swap(levels, potential)
    for iteration in range(times):
        state, statistics = swap(state, settings(iteration), random)
    return state, statistics


def test_each_level_keeps_its_distribution():
    groups = 20_000
    # An uneven ladder, or a mistake in what is swapped could be the same at all levels.
    ladder = torch.tensor([0.0, 0.003, 0.01, 0.1, 0.3, 1.0])
    state, _ = swapped(draws(ladder, groups), 7)
    assert torch.equal(state.position[BETA].reshape(LEVELS, groups), ladder.unsqueeze(-1).expand(LEVELS, groups))
    squares = state.position[X].square().reshape(LEVELS, groups, 2).mean(-1)
    for beta, found in zip(ladder, squares, strict=True):
        assert_mean(found, float(1 / precision(beta)))


def test_energies_and_gradients_are_those_of_where_replicas_are():
    state, _ = swapped(draws(even_ladder(LEVELS), 8), 3)
    energy, gradient = potential(state.position)
    assert torch.equal(state.energy, energy)
    assert torch.equal(state.gradient[X], gradient[X])
    assert torch.equal(state.gradient[BETA], gradient[BETA])


def test_probabilities_are_those_of_two_exponential_numbers():
    groups, ladder = 20_000, even_ladder(LEVELS)
    _, statistics = swapped(draws(ladder, groups), 1)
    for k in range(LEVELS - 1):
        found = statistics["swap_probability"].reshape(LEVELS, groups)[k]
        assert_mean(found, 1 - float(rejection(precision(ladder[k]), precision(ladder[k + 1]))))


def test_swaps_that_are_all_accepted_carry_a_replica_straight_through():
    state = draws(even_ladder(LEVELS), 1)
    alike = {**state.position, X: torch.ones(LEVELS, 2)}  # the same likelihood everywhere
    state, counts = state._replace(position=alike), Counts(even_ladder(LEVELS), 1)
    state = state._replace(gradient=potential(alike)[1])
    swap, random = Swap(LEVELS, potential), torch.Generator().manual_seed(0)
    for iteration in range(4 * LEVELS):
        state, statistics = swap(state, settings(iteration), random)
        counts.take_in(statistics)
    assert statistics["swap_probability"].reshape(LEVELS, 1)[:-1].eq(1).all()
    # A replica is at an end once in N swaps, and goes up and down in 2 N: each of N once in that time.
    assert int(counts.round_trips) in (LEVELS + 1, LEVELS, LEVELS + 2, LEVELS + 3)
    assert counts.expected_round_trips == 4 * LEVELS / 2


def test_fresh_draws_are_at_level_0_and_nowhere_else():
    groups = 3
    state = draws(even_ladder(LEVELS), groups)
    fresh = {X: torch.full((groups, 2), 7.0), BETA: torch.zeros(groups, 1)}
    after, _ = Swap(LEVELS, potential)(state, settings(1, fresh), torch.Generator().manual_seed(0))
    assert torch.equal(after.position[X][:groups], fresh[X])
    assert not (after.position[X][groups:] == 7).any()
    assert torch.equal(after.energy, potential(after.position)[0])


def test_nothing_is_swapped_that_is_not_finite():
    state = draws(even_ladder(LEVELS), 4)
    bad = {**state.gradient, BETA: torch.full_like(state.gradient[BETA], torch.nan)}
    after, statistics = Swap(LEVELS, potential)(
        state._replace(gradient=bad), settings(0), torch.Generator().manual_seed(0)
    )
    assert torch.equal(after.position[X], state.position[X])
    assert statistics["swap_probability"].eq(0).all()


def simulated(levels, groups, iterations, burn_in):
    """Counts of a kernel that forgets everything from swap to swap: draws anew, and labels that swap."""
    ladder = even_ladder(levels)
    swap, random = Swap(levels, potential), torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    counts = Counts(ladder, groups)
    for iteration in range(burn_in + iterations):
        _, statistics = swap(draws(ladder, groups), settings(iteration), random)
        counts.take_in(statistics)
        if iteration == burn_in - 1:
            counts.round_trips, counts.iterations = torch.zeros_like(counts.round_trips), 0
            counts._probability = torch.zeros_like(counts._probability)
    return counts


def test_round_trips_are_as_many_as_rejections_let_there_be():
    levels, groups, iterations = 10, 400, 400
    counts = simulated(levels, groups, iterations, 100)
    ratio = precision(1.0) ** (1 / (levels - 1))
    each = float(rejection(1, ratio))
    expected = iterations / (2 + 2 * (levels - 1) * each / (1 - each))
    assert_mean(counts.round_trips.double(), expected)
    assert abs(counts.expected_round_trips / expected - 1) < 0.02
    assert abs(counts.barrier - (levels - 1) * each) < 0.02
    # Of ever more levels the limit is 1/(2 + 2Λ), with Λ = ½ log(1 + 1/s²).
    barrier = float(torch.log(torch.tensor(precision(1.0)))) / 2
    assert expected < iterations / (2 + 2 * barrier)


def test_the_bridge_finds_the_ratio_of_normalisers():
    counts = simulated(5, 64, 200, 1)
    found, error = counts.log_evidence
    truth = -float(torch.log(torch.tensor(1 + 1 / SCALE**2)))
    assert abs(found - truth) < 4 * error
    assert error < 0.05
