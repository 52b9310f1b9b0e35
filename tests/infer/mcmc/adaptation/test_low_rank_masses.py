"""Inverse masses that are a diagonal plus a matrix of low rank: mechanics, estimation, and posteriors known exactly."""

import math
from functools import cache, partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean, deviation
from pyro_manifold.distributions import MatrixFisher, StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.infer.mcmc.adaptation import LowRankEstimator, geometric_mean
from pyro_manifold.infer.mcmc.mechanics import LowRankMechanics, LowRankMetric
from tests.infer.mcmc.compilers import native_code

SITES = ("own", "shift")


def some_system(size=6, weights=(20.0, -0.6)):
    """Masses with two directions, and the dense inverse mass matrix that they stand for."""
    scales = torch.rand(1, size) + 0.5
    directions = torch.linalg.qr(torch.randn(size, len(weights)))[0].mT
    dense = torch.eye(size) + directions.mT @ torch.tensor(weights).diag() @ directions
    metric = LowRankMetric(scales, torch.tensor([weights]), directions.unsqueeze(0))
    return metric, scales.mT * dense * scales


def test_momenta_are_those_of_a_diagonal_plus_low_rank():
    metric, inverse_mass = some_system()
    factor = LowRankMechanics().momentum_from(torch.eye(6), torch.zeros(6, 6), metric)
    torch.testing.assert_close(factor.mT @ factor @ inverse_mass, torch.eye(6))


@pytest.mark.parametrize("time", [0.3, torch.tensor([0.3, -0.2, 1.0])])
def test_a_drift_is_that_of_the_dense_inverse_mass(time):
    metric, inverse_mass = some_system()
    mechanics, position, momentum = LowRankMechanics(), torch.randn(3, 6), torch.randn(3, 6)
    moved, kept = mechanics.drift(position, momentum, metric, time)
    times = time.unsqueeze(-1) if isinstance(time, torch.Tensor) else time
    torch.testing.assert_close(moved, position + times * momentum @ inverse_mass)
    assert kept.equal(momentum)
    energy = mechanics.kinetic_energy(position, momentum, metric)
    torch.testing.assert_close(energy, (momentum @ inverse_mass * momentum).sum(-1) / 2)


# ---- estimation -----------------------------------------------------------------------------------------------------


def estimated(position, gradient, optional=False):
    """The metric from draws and gradients ``(iterations, chains, size)``, and its dense inverse mass matrix."""
    estimator = LowRankEstimator(position[0], optional)
    for x, g in zip(position, gradient, strict=True):
        estimator.update(x, g)
    flat = estimator.estimate()
    scales, weights, (directions,) = LowRankMetric.from_flat(flat)
    unit = torch.eye(position.shape[-1]) + directions.mT * weights @ directions
    return estimator.metric(flat), scales.mT * unit * scales


def has_directions(metric):
    return isinstance(metric, LowRankMetric) and bool(metric.weights.any())


def test_the_geometric_mean_solves_its_equation():
    root, other = torch.randn(2, 5, 5)
    C, G = root @ root.mT, other @ other.mT
    N = geometric_mean(C, G)
    torch.testing.assert_close(N @ G @ N, C, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(N, N.mT)


def correlated_normal(size=30, slow=100.0, stiff=0.01):
    """A covariance with one long and one short direction, neither along a coordinate."""
    basis = torch.linalg.qr(torch.randn(size, 2))[0]
    return torch.eye(size) + basis @ torch.tensor([slow - 1, stiff - 1]).diag() @ basis.mT


@pytest.mark.parametrize("explored", [1.0, 0.1])
def test_a_gaussian_gives_its_directions_from_few_draws(explored):
    """Also where chains have moved over a tenth of the posterior."""
    covariance = correlated_normal()
    draws = explored * torch.randn(100, 2, 30) @ torch.linalg.cholesky(covariance).mT
    assert_like_the_covariance(estimated(draws, draws @ torch.linalg.inv(covariance))[1], covariance)


def test_a_gaussian_gives_directions_from_a_chain_that_moves_slowly():
    """Variances of such draws are far from those of the posterior."""
    covariance = correlated_normal()
    steps = torch.randn(20, 100, 1, 30) @ torch.linalg.cholesky(covariance).mT
    for k in range(1, 100):
        steps[:, k] = 0.95 * steps[:, k - 1] + (1 - 0.95**2) ** 0.5 * steps[:, k]
    assert all(has_directions(estimated(each, each @ torch.linalg.inv(covariance))[0]) for each in steps)


def assert_like_the_covariance(inverse_mass, covariance):
    """Scales that are left without a direction differ by less than a factor of 2 from the usual one."""
    scaled = torch.linalg.eigvals(torch.linalg.solve(covariance, inverse_mass)).real
    assert 1 / 3 < scaled.amin() < scaled.amax() < 3


@pytest.mark.parametrize(
    "eigenvalues", [[1e-4] * 12 + [50.0], [0.5] + [300.0] * 12, [1e-3, 1e3], [0.1] * 5 + [3.0] * 5]
)
def test_the_inverse_mass_is_the_covariance_of_a_gaussian(eigenvalues):
    """Also where most eigenvalues are far from 1: what differs from the others gets directions."""
    spread = torch.tensor(eigenvalues)
    size = len(spread)
    basis = torch.linalg.qr(torch.randn(size, size))[0]
    draws = torch.randn(300, 2, size) * spread.sqrt() @ basis.mT
    metric, inverse_mass = estimated(draws, draws @ (basis / spread) @ basis.mT)
    assert has_directions(metric)
    assert_like_the_covariance(inverse_mass, (basis * spread) @ basis.mT)


@pytest.mark.parametrize(
    ("variances", "taken"),
    [([225.0] + [1.0] * 29, True), ([25.0] + [1.0] * 29, True), ([4.0] + [1.0] * 29, False), (None, False)],
)
def test_without_being_asked_for_they_must_make_trajectories_shorter_or_scales_alike(variances, taken):
    """The largest scale is 15 times the smallest, 5 times and twice, and 5 times with others evenly between them."""
    spread = torch.logspace(0, 2 * math.log10(5), 30) if variances is None else torch.tensor(variances)
    basis = torch.linalg.qr(torch.randn(30, 30))[0]
    draws = torch.randn(200, 4, 30) * spread.sqrt() @ basis.mT
    metric, _ = estimated(draws, draws @ (basis / spread) @ basis.mT, optional=True)
    assert isinstance(metric, LowRankMetric) == has_directions(metric) == taken


@pytest.mark.parametrize(
    ("correlation", "first", "again"), [(0.8, True, True), (0.57, False, True), (0.4, False, False)]
)
def test_directions_in_use_stay_with_less_correlation(correlation, first, again):
    """The correlation of gradients with draws along the long direction; the thresholds are 0.63 and 0.5."""
    spread, rotation = torch.tensor([225.0] + [1.0] * 9), torch.linalg.qr(torch.randn(10, 10))[0]
    draws, noise = torch.randn(2, 800, 4, 10)
    draws = draws * spread.sqrt()
    gradients = draws / spread
    noisy = gradients.clone()
    noisy[..., 0] += noise[..., 0] * (1 / correlation**2 - 1) ** 0.5 / 15

    def taken(slopes, before=None):
        estimator = LowRankEstimator(draws[0], optional=False)
        if before is not None:
            estimator.metric(before)
        for x, slope in zip(draws @ rotation, slopes @ rotation, strict=True):
            estimator.update(x, slope)
        flat = estimator.estimate()
        return flat, has_directions(estimator.metric(flat))

    in_use, certain = taken(gradients)
    assert certain
    assert taken(noisy)[1] == first
    assert taken(noisy, in_use)[1] == again


def funnel_draws():
    """Of Neal's funnel about the diagonal of its first two coordinates, and gradients of its potential."""
    v = 2 * torch.randn(400, 4)
    x = (v / 2).exp().unsqueeze(-1) * torch.randn(400, 4, 9)
    slope = torch.cat([(v / 4 + 4.5).unsqueeze(-1) - (x.square().sum(-1) * (-v).exp()).unsqueeze(-1) / 2,
                       x * (-v).exp().unsqueeze(-1)], -1)  # fmt: skip
    turn = torch.linalg.qr(torch.randn(10, 10))[0]
    return torch.cat([v.unsqueeze(-1), x], -1) @ turn, slope @ turn


def test_a_funnel_gives_none():
    assert not has_directions(estimated(*funnel_draws())[0])


def test_fewer_draws_than_numbers_give_none():
    covariance = correlated_normal()
    draws = torch.randn(25, 2, 30) @ torch.linalg.cholesky(covariance).mT
    assert not has_directions(estimated(draws, draws @ torch.linalg.inv(covariance))[0])


def test_independent_numbers_give_none():
    draws = torch.randn(300, 4, 20)
    assert not has_directions(estimated(draws, draws)[0])


def test_gradients_that_are_not_finite_give_none():
    draws = torch.randn(300, 4, 20)
    slopes = draws.clone()
    slopes[5, 1] = torch.inf
    assert not has_directions(estimated(draws, slopes)[0])


# ---- posteriors -----------------------------------------------------------------------------------------------------


def hidden_direction(size=12, spread=30.0):
    """Coordinates with a common shift: they vary together ``spread`` times as much as by themselves."""
    shift = pyro.sample("shift", dist.Normal(0.0, spread))
    pyro.sample("own", dist.Normal(shift, 1.0).expand([size]).to_event(1))


def low_rank(model, **options):
    return OHMC(model, full_mass="low rank", adapt_centring=False, **options)


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


class WrongMomentum(LowRankMechanics):
    def momentum_from(self, noise, position, metric):
        return noise / metric.scales


def directions_of(kernel, sites=SITES):
    """The rows of weights and directions in what users see of the masses, or None."""
    found = kernel.inverse_mass_matrix[sites]
    return found[1:] if found.dim() == 2 else None


@pytest.mark.long
def test_a_common_shift_is_followed():
    kernel = low_rank(hidden_direction)
    draws = drawn(kernel).get_samples(group_by_chain=True)
    assert directions_of(kernel)[:, 0].amax() > 10
    assert_mean(draws["shift"].square(), 900.0)
    assert_mean((draws["own"] - draws["shift"].unsqueeze(-1)).square().mean(-1), 1.0)
    plain = OHMC(hidden_direction, full_mass=False, adapt_centring=False)
    drawn(plain)
    assert directions_of(plain) is None
    assert plain.num_steps > 3 * kernel.num_steps


@pytest.mark.long
def test_warm_up_takes_a_long_direction_by_itself_and_no_short_one():
    """In units of diagonal masses the largest scale is 390 times the smallest, then 1.7 times; the threshold is 2.5."""
    kernels = [OHMC(partial(hidden_direction, spread=spread), adapt_centring=False) for spread in (30.0, 0.15)]
    for kernel in kernels:
        drawn(kernel, num_samples=5)
    assert [directions_of(kernel) is not None for kernel in kernels] == [True, False]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* moved in fewer than 5 %")  # wrong momenta may hardly move
def test_the_test_of_moments_can_fail(monkeypatch):
    tuning = tuned().tuning
    monkeypatch.setattr("pyro_manifold.infer.mcmc.hmc.kernel.LowRankMechanics", WrongMomentum)
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
    assert directions_of(other)[:, 0].amax() > 10
    if chains > 1:
        assert_mean(draws["shift"].square(), 900.0)


def test_directions_are_left_out_with_a_warning_where_a_kernel_has_none():
    other = GHMC(hidden_direction, tuning=tuned().tuning)
    with pytest.warns(UserWarning, match=r"directions across \['own', 'shift'\] of the earlier run are not used"):
        drawn(other, num_samples=5, warmup_steps=0)
    assert other.inverse_mass_matrix[SITES].equal(tuned().inverse_mass_matrix[SITES][0, 1:])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x[:, :-2], "the shape (9, 12), expected (9, 14)"),
        (lambda x: torch.cat([x[:, :1] - 2000, x[:, 1:]], -1), "weights of -1 or less"),
        (lambda x: torch.cat([x[:, :1], 2 * x[:, 1:]], -1), "directions that are not orthonormal"),
        (lambda x: "a", "is 'a', expected a tensor"),
    ],
)
def test_directions_that_do_not_fit(change, expected):
    masses = {SITES: change(tuned().inverse_mass_matrix[SITES])}
    with pytest.raises(ValueError, match="inverse_mass_matrix") as error:
        drawn(OHMC(hidden_direction, inverse_mass_matrix=masses), num_samples=5, warmup_steps=0)
    assert expected in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("full_mass", ["low rank", None])
def test_many_numbers_have_no_directions(full_mass):
    kernel = OHMC(lambda: hidden_direction(300), full_mass=full_mass)
    drawn(kernel, num_samples=5)
    assert directions_of(kernel) is None


@pytest.mark.long
@pytest.mark.parametrize(("moment", "full_mass"), [(155, "low rank"), (290, "low rank"), (155, None), (60, None)])
def test_a_run_restored_in_warm_up_continues_bit_for_bit(moment, full_mass):
    def begun():
        pyro.set_rng_seed(0)
        run = OHMC(hidden_direction, full_mass=full_mass, adapt_centring=False).prepare(2, 300, None)
        run.policy.planned = 20_000
        return run

    run, other = begun(), begun()
    while run.iteration < moment:
        run.advance()
    other.load_state_dict(run.state_dict())
    other.policy.planned = 20_000
    for each in (run, other):
        while each.iteration < 310:
            each.advance()
    assert isinstance(run.tuning.masses.metrics[SITES], LowRankMetric)
    for name, value in run.sites.items():
        assert torch.equal(value, other.sites[name])


@native_code
@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.long), torch.float32])
def test_native_code_agrees_with_eager_steps(dtype):
    torch.set_default_dtype(dtype)
    kernel = low_rank(hidden_direction)
    drawn(kernel, num_samples=20)
    run = kernel.run
    run.policy.make(run.state)
    trajectory = run.transitions[-1]
    assert trajectory.graph.backend == "native"
    assert trajectory.difference(run.state, run.tuning.settings(1), run.random) is None


@pytest.mark.parametrize(
    "direction",
    [
        pytest.param(lambda: dist.ProjectedNormal(torch.eye(3)[0]), id="sphere", marks=pytest.mark.long),
        pytest.param(lambda: StiefelUniform(3, 2), id="Stiefel"),
    ],
)
def test_other_sites_have_directions_in_a_model_with_a_manifold(direction):
    def model():
        pyro.sample("direction", direction())
        hidden_direction()

    kernel = low_rank(model)
    draws = drawn(kernel).get_samples(group_by_chain=True)
    assert directions_of(kernel)[:, 0].amax() > 10
    assert_mean(draws["shift"].square(), 900.0)


def test_a_site_on_a_manifold_in_a_dense_block_is_refused():
    def model():
        pyro.sample("x", StiefelUniform(3, 1))
        pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"full_mass names 'x', which moves on a manifold"):
        drawn(OHMC(model, full_mass=[("x", "z")]), num_samples=5, warmup_steps=0)


@pytest.mark.long
def test_the_tail_of_a_vector_that_follows_a_rotation():
    """Masses across both would make chains stick there: P = 0.007 had errors of 0.005 with them, 0.0003 without."""
    concentration = 4 * torch.tensor([[0.5, -0.3, 0.8], [-1.1, 0.4, 0.2], [-0.9, -0.6, 0.7]])
    rotations = MatrixFisher(concentration)

    def model():
        rotation = pyro.sample("rotation", rotations)
        pyro.sample("vector", dist.Normal(10 * rotation[:, 0], 0.1).to_event(1))

    draws = drawn(OHMC(model), num_chains=32, num_samples=1000).get_samples(group_by_chain=True)["vector"]
    exact = 10 * rotations.sample((200_000,))[:, :, 0] + 0.1 * torch.randn(200_000, 3)
    beyond, others = exact[:100_000].quantile(0.99, dim=0), exact[100_000:]
    for index in range(3):
        truth = (others[:, index] > beyond[index]).double()
        assert_mean((draws[..., index] > beyond[index]).double(), truth.mean(), float(truth.std()) / len(truth) ** 0.5)
