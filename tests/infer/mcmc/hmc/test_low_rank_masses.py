"""Directions across unconstrained sites: their mechanics, their estimation, and posteriors that are known exactly."""

from functools import cache, partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean, deviation
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.hmc.low_rank_masses import LowRankEstimator
from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics, Metric
from pyro_manifold.infer.mcmc.hmc.ridges import RidgeMechanics, Ridges
from tests.infer.mcmc.compilers import native_code

A, B, ACROSS = ("a",), ("b",), ("directions across", "a", "b")


def some_system(chains=3, sizes=(4, 2), weights=(20.0, -0.6)):
    """Mechanics of two blocks with directions that are orthonormal in their diagonal masses, and a random position."""
    inverse_masses = torch.rand(1, sum(sizes)) + 0.5
    basis = torch.linalg.qr(torch.randn(sum(sizes), len(weights)))[0].mT * inverse_masses.sqrt()
    shifts = basis.expand(chains, -1, -1).split(sizes, -1)
    ridges = Ridges(torch.tensor(weights).expand(chains, -1), {}, dict(zip((A, B), shifts, strict=True)))
    each = dict(zip((A, B), inverse_masses.split(sizes, -1), strict=True))
    metrics = {block: Metric.from_inverse_mass(value) for block, value in each.items()} | {ACROSS: ridges}
    dense = inverse_masses[0].diag() + basis.mT @ torch.tensor(weights).diag() @ basis
    position = {block: torch.randn(chains, size) for block, size in zip((A, B), sizes, strict=True)}
    return (
        RidgeMechanics({A: EuclideanMechanics(), B: EuclideanMechanics()}, {ACROSS: (A, B)}),
        metrics,
        dense,
        position,
    )


def joined(blocks):
    return torch.cat([blocks[A], blocks[B]], -1)


def test_momenta_are_those_of_a_diagonal_plus_low_rank():
    mechanics, metrics, inverse_mass, _ = some_system(6)
    noise = dict(zip((A, B), torch.eye(6).split((4, 2), -1), strict=True))
    factor = joined(mechanics.momentum_from(noise, noise, metrics))
    torch.testing.assert_close(factor.mT @ factor @ inverse_mass, torch.eye(6))


@pytest.mark.parametrize("time", [0.3, torch.tensor([0.3, -0.2, 1.0])])
def test_a_drift_is_that_of_the_dense_inverse_mass(time):
    mechanics, metrics, inverse_mass, position = some_system()
    momentum = {A: torch.randn(3, 4), B: torch.randn(3, 2)}
    moved, kept = mechanics.drift(position, momentum, metrics, time)
    times = time.unsqueeze(-1) if isinstance(time, torch.Tensor) else time
    torch.testing.assert_close(joined(moved), joined(position) + times * joined(momentum) @ inverse_mass)
    assert joined(kept).equal(joined(momentum))
    energy = mechanics.kinetic_energy(position, momentum, metrics)
    expected = (joined(momentum) @ inverse_mass * joined(momentum)).sum(-1) / 2
    torch.testing.assert_close(energy - energy[0], expected - expected[0])


# ---- estimation -----------------------------------------------------------------------------------------------------


def estimated(position, gradient, optional=False):
    """Weights ``(chains, k)`` from draws ``(iterations, chains, size)`` and unit masses."""
    estimator = LowRankEstimator((A,), {A: position[0]}, {}, optional)
    for x, g in zip(position, gradient, strict=True):
        estimator.update({A: x}, {A: g})
    flat, masses = estimator.estimate({A: torch.ones(1, position.shape[-1])})
    return flat[..., 0], masses


def correlated_normal(size=30, slow=100.0, stiff=0.01):
    """A covariance with one long and one short direction, neither along a coordinate."""
    basis = torch.linalg.qr(torch.randn(size, 2))[0]
    return torch.eye(size) + basis @ torch.tensor([slow - 1, stiff - 1]).diag() @ basis.mT


@pytest.mark.parametrize("explored", [1.0, 0.1])
def test_a_gaussian_gives_its_directions_from_few_draws(explored):
    """Also where chains have moved over a tenth of the posterior.

    Of 400 seeds none had draws that looked unlike a Gaussian's, as those of 35 iterations do once in 16 times.
    """
    covariance = correlated_normal()
    draws = explored * torch.randn(100, 2, 30) @ torch.linalg.cholesky(covariance).mT
    weights, masses = estimated(draws, draws @ torch.linalg.inv(covariance))
    assert weights.equal(weights[:1].expand_as(weights))
    assert 50 < weights[0].amax() < 130
    torch.testing.assert_close(weights[0].amin(), torch.tensor(-0.99), rtol=0.02, atol=0)
    torch.testing.assert_close(masses[A], torch.ones(1, 30), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "eigenvalues", [[1e-4] * 12 + [50.0], [0.5] + [300.0] * 12, [1e-3, 1e3], [0.1] * 5 + [3.0] * 5]
)
def test_the_inverse_mass_is_the_covariance_of_a_gaussian(eigenvalues):
    """Also where most eigenvalues are far from 1: what differs from the others gets directions."""
    spread = torch.tensor(eigenvalues)
    size = len(spread)
    basis = torch.linalg.qr(torch.randn(size, size))[0]
    draws = torch.randn(300, 2, size) * spread.sqrt() @ basis.mT
    estimator = LowRankEstimator((A,), {A: draws[0]}, {}, optional=False)
    for x in draws:
        estimator.update({A: x}, {A: x @ (basis / spread) @ basis.mT})
    flat, masses = estimator.estimate({A: torch.ones(1, size)})
    shifts = flat[0, :, 1:]
    found = masses[A][0].diag() + shifts.mT @ (flat[0, :, :1] * shifts)
    scaled = torch.linalg.eigvals(torch.linalg.solve((basis * spread) @ basis.mT, found)).real
    torch.testing.assert_close(scaled, torch.ones(size), rtol=0.1, atol=0)


@pytest.mark.parametrize(("spread", "taken"), [(100.0, True), (60.0, False)])
def test_without_being_asked_for_they_must_make_trajectories_much_shorter(spread, taken):
    """The largest scale is ten times the smallest, then less than eight times."""
    covariance = correlated_normal(slow=spread, stiff=1.0)
    draws = torch.randn(200, 4, 30) @ torch.linalg.cholesky(covariance).mT
    weights, masses = estimated(draws, draws @ torch.linalg.inv(covariance), optional=True)
    assert bool(weights.any()) == bool(masses) == taken


def funnel_draws():
    """Of Neal's funnel about the diagonal of its first two coordinates, and gradients of its potential."""
    v = 2 * torch.randn(400, 4)
    x = (v / 2).exp().unsqueeze(-1) * torch.randn(400, 4, 9)
    slope = torch.cat([(v / 4 + 4.5).unsqueeze(-1) - (x.square().sum(-1) * (-v).exp()).unsqueeze(-1) / 2,
                       x * (-v).exp().unsqueeze(-1)], -1)  # fmt: skip
    turn = torch.linalg.qr(torch.randn(10, 10))[0]
    return torch.cat([v.unsqueeze(-1), x], -1) @ turn, slope @ turn


def test_a_funnel_gives_none():
    draws, slopes = funnel_draws()
    weights, masses = estimated(draws, slopes)
    assert not weights.any()
    assert not masses


def test_fewer_draws_than_numbers_give_none():
    covariance = correlated_normal()
    draws = torch.randn(25, 2, 30) @ torch.linalg.cholesky(covariance).mT
    assert not estimated(draws, draws @ torch.linalg.inv(covariance))[0].any()


def test_independent_numbers_give_none():
    draws = torch.randn(300, 4, 20)
    assert not estimated(draws, draws)[0].any()
    slopes = draws.clone()
    slopes[5, 1] = torch.inf
    assert estimated(draws, slopes)[0].isfinite().all()


# ---- posteriors -----------------------------------------------------------------------------------------------------


def hidden_direction(size=12, spread=30.0):
    """Coordinates with a common shift: they vary together ``spread`` times as much as by themselves."""
    shift = pyro.sample("shift", dist.Normal(0.0, spread))
    pyro.sample("own", dist.Normal(shift, 1.0).expand([size]).to_event(1))


def low_rank(model, **options):
    return OHMC(model, full_mass="low rank", **options)


def drawn(kernel, **more):
    mcmc = MCMC(kernel, **{"num_samples": 500, "warmup_steps": 500, "num_chains": 4, "disable_progbar": True, **more})
    mcmc.run()
    return mcmc


@cache
def tuned():
    """A kernel with directions, for tests of what becomes of them."""
    kernel = low_rank(hidden_direction)
    drawn(kernel, num_samples=5)
    return kernel


class WrongMomentum(RidgeMechanics):
    def momentum_from(self, noise, position, metrics):
        return super().momentum_from(noise, position, {k: v for k, v in metrics.items() if k[0] != ACROSS[0]})


def test_a_common_shift_is_followed():
    kernel = low_rank(hidden_direction)
    draws = drawn(kernel).get_samples(group_by_chain=True)
    assert kernel.inverse_mass_matrix["directions across", "own", "shift"][..., 0].amax() > 10
    assert_mean(draws["shift"].square(), 900.0)
    assert_mean((draws["own"] - draws["shift"].unsqueeze(-1)).square().mean(-1), 1.0)
    plain = OHMC(hidden_direction, full_mass=False)
    drawn(plain)
    assert list(plain.inverse_mass_matrix) == [("own", "shift")]
    assert plain.num_steps > 3 * kernel.num_steps


@pytest.mark.long
def test_warm_up_takes_a_long_direction_by_itself_and_no_short_one():
    """In units of the masses the largest scale is 249 times the smallest, then 2.5 times; the threshold is 8."""
    kernels = OHMC(hidden_direction), OHMC(partial(hidden_direction, spread=0.3))
    for kernel in kernels:
        drawn(kernel, num_samples=5)
    taken = [("directions across", "own", "shift") in kernel.inverse_mass_matrix for kernel in kernels]
    assert taken == [True, False]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* moved in fewer than 5 %")  # wrong momenta may hardly move
def test_the_test_of_moments_can_fail(monkeypatch):
    tuning = tuned().tuning
    monkeypatch.setattr("pyro_manifold.infer.mcmc.hmc.directions.RidgeMechanics", WrongMomentum)
    wrong = low_rank(hidden_direction, tuning=tuning)
    draws = drawn(wrong, num_chains=32, warmup_steps=0).get_samples(group_by_chain=True)
    own = (draws["own"] - draws["shift"].unsqueeze(-1)).square().mean(-1)
    found = deviation(own, 1.0), deviation(draws["shift"].square(), 900.0)
    assert max(map(abs, found)) > 8, found


@pytest.mark.long
@pytest.mark.parametrize("chains", [1, 7])
def test_directions_of_an_earlier_run_serve_any_number_of_chains(chains):
    other = low_rank(hidden_direction, tuning=tuned().tuning)
    draws = drawn(other, warmup_steps=0, num_chains=chains, num_samples=400).get_samples(group_by_chain=True)
    assert other.inverse_mass_matrix["directions across", "own", "shift"][..., 0].amax() > 10
    if chains > 1:
        assert_mean(draws["shift"].square(), 900.0)


@pytest.mark.parametrize("full_mass", ["low rank", pytest.param(None, marks=pytest.mark.long)])
def test_many_numbers_have_no_directions(full_mass):
    kernel = OHMC(lambda: hidden_direction(300), full_mass=full_mass)
    drawn(kernel, num_samples=5)
    assert list(kernel.inverse_mass_matrix) == [("own", "shift")]


@pytest.mark.long
@pytest.mark.parametrize(("moment", "full_mass"), [(155, "low rank"), (290, "low rank"), (155, None), (60, None)])
def test_a_run_restored_in_warm_up_goes_on_bit_for_bit(moment, full_mass):
    def begun():
        pyro.set_rng_seed(0)
        run = OHMC(hidden_direction, full_mass=full_mass).prepare(2, 300, None)
        run.compilation.planned = 20_000
        return run

    run, other = begun(), begun()
    while run.iteration < moment:
        run.advance()
    other.load_state_dict(run.state_dict())
    other.compilation.planned = 20_000
    for each in (run, other):
        while each.iteration < 310:
            each.advance()
    assert ("directions across", "own", "shift") in run.tuning.masses.metrics
    for name, value in run.sites.items():
        assert torch.equal(value, other.sites[name])


@native_code
@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.long), torch.float32])
def test_native_code_agrees_with_eager_steps(dtype):
    torch.set_default_dtype(dtype)
    kernel = low_rank(hidden_direction)
    drawn(kernel, num_samples=20)
    run = kernel.run
    run.compilation.make(run.state)
    trajectory = run.transitions[-1]
    assert trajectory.graph.form == "native"
    assert trajectory.difference(run.state, run.tuning.settings(1), run.random) is None
