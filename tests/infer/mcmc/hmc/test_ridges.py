"""Directions across blocks: theorems about their mechanics, their estimation, and posteriors with a ridge."""

import math
from functools import cache
from itertools import pairwise

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import STANDARD_ERRORS, assert_mean, deviation
from problems.phase_space import System, langevin_bingham, phase_space_map, spread_masses, tangent_basis
from problems.targets import LANGEVIN
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.infer.mcmc.hmc.columns import ColumnMechanics
from pyro_manifold.infer.mcmc.hmc.leapfrog import State
from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics, EuclideanMechanics
from pyro_manifold.infer.mcmc.hmc.ridge_masses import RidgeEstimator, geometric_mean, planes
from pyro_manifold.infer.mcmc.hmc.ridges import RidgeMechanics, Ridges
from pyro_manifold.infer.mcmc.hmc.trajectory import Trajectory
from pyro_manifold.infer.mcmc.transitions import compilation
from pyro_manifold.infer.mcmc.transitions.executable import Executable
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.compilers import native_code

X, Z, ACROSS = ("X",), ("z",), ("directions across", "X", "z")
MECHANICS = {"Cayley": CayleyMechanics(), "columns": ColumnMechanics()}
over_cases = pytest.mark.parametrize(
    ("base", "n", "p"), [("Cayley", 3, 1), ("Cayley", 5, 2), ("Cayley", 4, 4), ("columns", 5, 2), ("columns", 3, 2)]
)


class WithoutNormaliser(RidgeMechanics):
    """The determinant is left out: each step is symplectic, and positions have another distribution."""

    def kinetic_energy(self, position, momentum, metrics):
        (ridges,) = self._ridges(metrics)
        k = torch.zeros(len(ridges.weights))
        alone = {**metrics, ACROSS: ridges._replace(weights=torch.zeros_like(ridges.weights))}
        for index in range(ridges.size):
            rate = sum(x.rate(index, position[b], momentum[b]) for b, x in ridges.generators.items())
            k = k + ridges.weights[:, index] * (rate + (ridges.shifts[Z][:, index] * momentum[Z]).sum(-1)) ** 2 / 2
        return super().kinetic_energy(position, momentum, alone) + k

    def _normalised(self, position, momentum, metrics, time):
        return momentum


class WrongMomentum(RidgeMechanics):
    """Momenta of the blocks, as if there were no directions."""

    def momentum_from(self, noise, position, metrics):
        return super().momentum_from(noise, position, {k: v for k, v in metrics.items() if k != ACROSS})


class OneWay(RidgeMechanics):
    """Flows in one order only: symplectic, but not reversible."""

    def _turned(self, position, momentum, metrics, time, order):
        return super()._turned(position, momentum, metrics, time, 1)


def some_directions(n, p, numbers, weights):
    """Random generators and shifts, and weights of them."""
    root = torch.randn(1, len(weights), n, n) / 6
    shifts = torch.randn(1, len(weights), numbers) / 3
    generators = planes(root - root.mT, n // 2)
    return Ridges(torch.tensor([weights]), {X: generators}, {Z: shifts})


class RidgeSystem(System):
    """A matrix with the density of `langevin_bingham` and independent standard normal numbers."""

    def __init__(self, base, n, p, numbers=2, kind=RidgeMechanics, F=None, weights=(20.0, 3.0, 0.5)):
        mechanics = {X: MECHANICS[base], Z: EuclideanMechanics()}
        of_matrix = langevin_bingham(torch.randn(n, p) if F is None else F, torch.zeros(n, n), torch.zeros(p, p))

        def potential(position):
            energy, gradient = of_matrix({X: position[X]})
            return energy + position[Z].square().sum(-1) / 2, {**gradient, Z: position[Z]}

        masses = {X: spread_masses(MECHANICS[base], p, 0.6), Z: torch.linspace(0.4, 1.5, numbers)}
        super().__init__(potential, mechanics, masses)
        self.mechanics = kind(mechanics, {ACROSS: (X, Z)})
        self.metrics[ACROSS] = some_directions(n, p, numbers, weights)
        self.trajectory = Executable(Trajectory(self.mechanics), lambda batch: potential)
        self.shape, self.numbers = (n, p), numbers

    def start(self, chains=1):
        return {X: Stiefel().random_point(chains, *self.shape), Z: torch.randn(chains, self.numbers)}


def momenta_and_precision(system):
    """The matrix of the map from noise to momenta in tangent coordinates, and the Hessian of K in them."""
    position, (n, p) = system.start(), system.shape
    basis = tangent_basis(position[X][0])

    def energy(coordinates):
        inner, outer = coordinates[: len(basis)], coordinates[len(basis) :]
        momentum = {X: torch.tensordot(inner, basis, 1)[None], Z: outer[None]}
        return system.mechanics.kinetic_energy(position, momentum, system.metrics)[0]

    def momentum(noise):
        noise = {X: noise[: n * p].reshape(1, n, p).clone(), Z: noise[None, n * p :].clone()}
        found = system.mechanics.momentum_from(noise, position, system.metrics)
        torch.testing.assert_close(Stiefel().tangent_projection(position[X], found[X]), found[X])
        return torch.cat([(basis * found[X]).flatten(1).sum(1), found[Z][0]])

    columns = [momentum(unit) for unit in torch.eye(n * p + system.numbers)]
    hessian = torch.func.hessian(energy)(torch.zeros(len(basis) + system.numbers))
    return torch.stack(columns, 1), hessian


@over_cases
def test_momenta_have_the_distribution_of_the_kinetic_energy(base, n, p):
    """Momenta are linear in the noise: their covariance is the inverse of the Hessian without Monte Carlo error."""
    momenta, hessian = momenta_and_precision(RidgeSystem(base, n, p))
    torch.testing.assert_close(momenta @ momenta.mT @ hessian, torch.eye(len(hessian)), rtol=0, atol=1e-10)


def test_momenta_of_negative_weights_have_the_distribution_of_the_kinetic_energy():
    """Two orthogonal generators of one mass, so that the kinetic energy is positive for weights above -1."""
    system = RidgeSystem("Cayley", 4, 1, weights=(-0.9, 4.0))
    root = torch.zeros(1, 2, 4, 4)
    root[0, 0, 1, 0], root[0, 1, 2, 0] = 0.6**0.5, 0.6**0.5
    system.metrics[ACROSS] = Ridges(
        torch.tensor([[-0.9, 4.0]]), {X: planes(root - root.mT, 1)}, {Z: torch.zeros(1, 2, 2)}
    )
    momenta, hessian = momenta_and_precision(system)
    torch.testing.assert_close(momenta @ momenta.mT @ hessian, torch.eye(len(hessian)), rtol=0, atol=1e-10)


def test_the_test_of_momenta_can_fail():
    momenta, hessian = momenta_and_precision(RidgeSystem("Cayley", 5, 2, kind=WrongMomentum))
    assert (momenta @ momenta.mT @ hessian - torch.eye(len(hessian))).abs().max() > 0.2


def difference_of_the_way_back(system, steps=20):
    start = system.state(system.start())
    end = system.integrate(start, 0.1, steps)
    flipped = end._replace(momentum={block: -r for block, r in end.momentum.items()})
    back = system.integrate(flipped, 0.1, steps)
    return max(float((back.position[block] - start.position[block]).abs().max()) for block in start.position)


@over_cases
def test_forward_flip_forward_returns_to_the_start(base, n, p):
    assert difference_of_the_way_back(RidgeSystem(base, n, p)) < 1e-9


def test_flows_in_one_order_do_not_return():
    assert difference_of_the_way_back(RidgeSystem("Cayley", 5, 2, kind=OneWay)) > 1e-4


@over_cases
def test_a_step_preserves_volume(base, n, p):
    """Of the matrix; numbers z and their momenta are moved by shears, and are held."""
    system = RidgeSystem(base, n, p)
    z, s = torch.randn(1, system.numbers), torch.randn(1, system.numbers)
    system.metrics[ACROSS].shifts[Z].zero_()

    def step(point, momentum):
        position = {X: point.unsqueeze(0), Z: z}
        energy, gradient = system.potential(position)
        state = system.integrate(State(position, {X: momentum.unsqueeze(0), Z: s}, energy, gradient), 0.2, 1)
        return state.position[X][0], state.momentum[X][0]

    phase_space, mapped = phase_space_map(step, Stiefel().random_point(n, p))
    dimension = Stiefel().dimension(n, p)
    there = torch.cat([torch.zeros(dimension), torch.randn(dimension)])
    end = phase_space(there)[0].detach()
    basis = tangent_basis(end)
    jacobian = torch.func.jacfwd(lambda at: mapped(at, end, basis))(there)
    assert abs(abs(float(torch.linalg.det(jacobian))) - 1) < 1e-9


COSTLY = [("Cayley", 4, 4), ("columns", 3, 2)]


@pytest.mark.parametrize(
    ("base", "n", "p"),
    [("Cayley", 5, 2), *(pytest.param(*case, marks=pytest.mark.long) for case in COSTLY)],
)
def test_energy_error_is_of_second_order(base, n, p):
    """So the kick of the normaliser is the gradient of the normaliser in the energy."""
    system = RidgeSystem(base, n, p)
    start = system.state(system.start())
    counts = [64, 128, 256]
    errors = [
        float((system.energy(system.integrate(start, 0.5 / count, count)) - system.energy(start)).abs())
        for count in counts
    ]
    orders = [math.log2(before / after) for before, after in pairwise(errors)]
    assert all(1.8 < order < 2.2 for order in orders[1:])


def draws_of(name, base, kind=RidgeMechanics):
    target = LANGEVIN[name]
    F = torch.as_tensor(target.F)
    system = RidgeSystem(base, *F.shape, kind=kind, F=F, weights=(40.0, 10.0))
    found, acceptance = system.sample(system.state(system.start(500)), 0.12, 6, iterations=80, burn_in=30)
    return deviation(target.statistic(found[X]), *target.expectation()), acceptance, found[Z]


@pytest.mark.long
@pytest.mark.parametrize(("base", "name"), [("Cayley", "sphere"), ("columns", "V(4,3), full F")])
def test_distribution_of_many_chains(base, name):
    deviates, acceptance, numbers = draws_of(name, base)
    assert acceptance > 0.4
    assert abs(deviates) < STANDARD_ERRORS
    assert abs(deviation(numbers[..., 0].square(), 1.0, 0.0)) < STANDARD_ERRORS


@pytest.mark.long
def test_without_the_normaliser_the_distribution_is_another():
    deviates, acceptance, _ = draws_of("sphere", "Cayley", WithoutNormaliser)
    assert acceptance > 0.4
    assert abs(deviates) > 8


# ---- estimation -----------------------------------------------------------------------------------------------------


def test_the_geometric_mean_solves_its_equation():
    root, other = torch.randn(2, 3, 5, 5)
    C, G = root @ root.mT, other @ other.mT
    N = geometric_mean(C, G)
    torch.testing.assert_close(N @ G @ N, C, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(N, N.mT)


def test_planes_are_the_skew_matrices_that_they_are_made_of():
    root = torch.randn(2, 3, 5, 5)
    generators = root - root.mT
    generators[0, 1] = 0
    point = Stiefel().random_point(2, 5, 2)
    turning = planes(generators, 2)
    torch.testing.assert_close(turning.applied(point), generators @ point.unsqueeze(1))
    angle = torch.tensor([0.7, -3.0])
    expected = torch.linalg.matrix_exp(angle[:, None, None] * generators[:, 2]) @ point
    torch.testing.assert_close(turning.rotated(2, point, angle), expected)


def concentrated_draws(chains=2, iterations=400):
    """Draws of X near a matrix, z = 4 (coordinate of X) + noise, and gradients of their Gaussian approximation."""
    anchor = torch.eye(4, 1).expand(chains, 4, 1)
    tangent = 0.01 * torch.randn(iterations, chains, 3) * torch.tensor([1.0, 1.0, 5.0])
    z = 400 * tangent[..., 2:] + 0.5 * torch.randn(iterations, chains, 1)
    points = torch.cat([anchor.expand(iterations, -1, -1, -1), torch.zeros(iterations, chains, 0, 1)], 2).clone()
    points[..., 1:, 0] = tangent
    points = points / points.norm(dim=-2, keepdim=True)
    residual = (z - 400 * tangent[..., 2:]) / 0.25
    slopes = torch.zeros_like(points)
    slopes[..., 1:, 0] = tangent / torch.tensor([0.01, 0.01, 0.05]).square()
    slopes[..., 3, 0] -= 400 * residual[..., 0]
    return points, z, slopes, residual


def test_a_gaussian_near_a_matrix_gives_its_ridge():
    points, z, slopes, residual = concentrated_draws()
    estimator = RidgeEstimator((X, Z), {X: points[0], Z: z[0]}, {X}, optional=True)
    for x, y, g, h in zip(points, z, slopes, residual, strict=True):
        estimator.update({X: x, Z: y}, {X: g, Z: h})
    base = {X: torch.tensor([1e-4]), Z: torch.full((1, 1), 400 * 0.05 * 0.5)}
    flat = estimator.estimate(base)[0]
    weights = flat[..., 0].amax(1)
    # Of (coordinate, z) in units of the masses: variances 25 and 400/10, correlation 20/20.006.
    scaled = torch.tensor([[25.0, 400 * 0.0025 / (1e-2 * 10**0.5)], [0.0, (400 * 0.05) ** 2 / 10 + 0.25 / 10]])
    expected = torch.linalg.eigvalsh(scaled.mT + scaled - scaled.diag().diag())[-1] - 1
    assert (weights / expected - 1).abs().max() < 0.25


def test_independent_numbers_have_no_directions():
    points, z, slopes, _ = concentrated_draws()
    points, slopes = points.clone(), 1e4 * points
    tangent = 0.01 * torch.randn(len(points), 2, 3)
    points[..., 1:, 0] = tangent
    slopes[..., 1:, 0] = tangent * 1e4
    slopes[..., 0, 0] = 0
    z = torch.randn_like(z)
    for optional in (True, False):
        estimator = RidgeEstimator((X, Z), {X: points[0], Z: z[0]}, {X}, optional)
        for x, y, g in zip(points, z, slopes, strict=True):
            estimator.update({X: x, Z: y}, {X: g, Z: y})
        assert not estimator.estimate({X: torch.tensor([1e-4]), Z: torch.ones(1, 1)})[0].any()


def test_a_chain_with_gradients_that_are_not_finite_has_no_directions():
    points, z, slopes, residual = concentrated_draws()
    slopes[5, 1] = torch.inf
    estimator = RidgeEstimator((X, Z), {X: points[0], Z: z[0]}, {X}, optional=False)
    for x, y, g, h in zip(points, z, slopes, residual, strict=True):
        estimator.update({X: x, Z: y}, {X: g, Z: h})
    flat = estimator.estimate({X: torch.tensor([1e-4]), Z: torch.full((1, 1), 10.0)})[0]
    assert flat.isfinite().all()


# ---- posteriors -----------------------------------------------------------------------------------------------------


def ridge(slope=10.0):
    """A uniform unit vector, and a number that follows its first entry closely: var z = slope²/3 + 0.01."""
    x = pyro.sample("x", StiefelUniform(3, 1))
    pyro.sample("z", dist.Normal(slope * x[0, 0], 0.1))


def drawn(kernel, *, native=True, **more):
    """In native code from the start, where there is a compiler: it is much faster."""
    mcmc = MCMC(kernel, **{"num_samples": 300, "warmup_steps": 500, "num_chains": 8, "disable_progbar": True, **more})
    with pytest.MonkeyPatch.context() as patch:
        if native:
            patch.setattr(compilation, "_OPERATORS_WORTH_MAKING", 0)
        mcmc.run()
    return mcmc


@cache
def tuned():
    """A kernel with directions, for tests of what becomes of them."""
    kernel = OHMC(ridge, trajectory_length=2.0)
    drawn(kernel, num_samples=5, warmup_steps=200)
    return kernel


GROUPED = {"full_mass": [("x", "z")]}


@pytest.mark.parametrize("options", [{}, pytest.param(GROUPED, marks=pytest.mark.long)])
def test_a_ridge_is_followed(options):
    """Directions are taken by default; the two moments are known exactly."""
    kernel = OHMC(ridge, **options)
    mcmc = drawn(kernel)
    assert kernel.inverse_mass_matrix["directions across", "x", "z"][..., 0].amax() > 10
    draws = mcmc.get_samples(group_by_chain=True)
    assert_mean(draws["x"][..., 0, 0].square(), 1 / 3)
    assert_mean(draws["z"].square(), 100 / 3 + 0.01)
    last = {name: value[:, -1] for name, value in draws.items()}
    again = drawn(OHMC(ridge, tuning=kernel.tuning, **options), warmup_steps=0, initial_params=last)
    assert_mean(again.get_samples(group_by_chain=True)["x"][..., 0, 0].square(), 1 / 3)


def test_directions_of_an_earlier_run_are_left_out_for_another_number_of_chains():
    other = OHMC(ridge, tuning=tuned().tuning)
    drawn(other, num_samples=5, warmup_steps=0, num_chains=3)
    assert not any(block[0] == "directions across" for block in other.inverse_mass_matrix)


@pytest.mark.long
def test_directions_are_left_out_with_a_warning_where_a_kernel_has_none():
    with pytest.warns(UserWarning, match=r"directions across \['x', 'z'\] of the earlier run are not used"):
        drawn(GHMC(ridge, tuning=tuned().tuning), num_samples=5, warmup_steps=0)
    fixed = OHMC(ridge, tuning=tuned().tuning, adapt_mass_matrix=False)
    drawn(fixed, num_samples=5, warmup_steps=20)
    assert ("directions across", "x", "z") in fixed.inverse_mass_matrix


def test_one_mass_for_each_site_has_no_directions():
    kernel = OHMC(ridge, column_masses=False)
    drawn(kernel, num_samples=5)
    assert list(kernel.inverse_mass_matrix) == [("z",), ("x",)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "moment", "planned"),
    [({}, 155, 700), ({}, 290, 320), (GROUPED, 155, 20_000), (GROUPED, 290, 700)],
)
def test_a_run_restored_in_warm_up_goes_on_bit_for_bit(options, moment, planned):
    """Native code comes into use at the same iterations, also where it is not worth making again for directions."""

    def begun():
        pyro.set_rng_seed(0)
        run = OHMC(ridge, **options).prepare(2, 300, None)
        run.compilation.planned = planned
        return run

    def advanced(run, last):
        while run.iteration < last:
            run.advance()
        return run

    run, other = begun(), begun()
    saved = advanced(run, moment).state_dict()
    other.load_state_dict(saved)
    other.compilation.planned = planned
    first, second = advanced(run, 310), advanced(other, 310)
    assert ("directions across", "x", "z") in first.tuning.masses.metrics
    for name, value in first.sites.items():
        assert torch.equal(value, second.sites[name])


@pytest.mark.long
def test_a_compiled_step_goes_on_without_directions_and_eagerly_with_them():
    kernel = OHMC(ridge, full_mass=[("x", "z")], jit_compile=True, jit_options={"backend": "eager"})
    draws = drawn(kernel, native=False, num_samples=100).get_samples(group_by_chain=True)
    assert draws["x"].isfinite().all()
    plain = OHMC(ridge, jit_compile=True, jit_options={"backend": "eager"})
    drawn(plain, native=False, num_samples=5, warmup_steps=200)
    assert list(plain.inverse_mass_matrix) == [("z",), ("x",)]


def test_a_model_without_a_ridge_has_no_directions():
    def model():
        x = pyro.sample("x", StiefelUniform(3, 1))
        pyro.sample("z", dist.Normal(x[0, 0], 1.0))

    kernel = OHMC(model)
    drawn(kernel, num_samples=5)
    assert list(kernel.inverse_mass_matrix) == [("z",), ("x",)]


@native_code
@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_native_code_agrees_with_eager_steps(dtype):
    torch.set_default_dtype(dtype)
    kernel = OHMC(ridge, full_mass=[("x", "z")])
    mcmc = drawn(kernel, num_samples=20)
    run = kernel.run
    run.compilation.make(run.state)
    trajectory = run.transitions[-1]
    assert trajectory.graph.form == "native"
    assert trajectory.difference(run.state, run.tuning.settings(1), run.random) is None
    assert mcmc.get_samples()["z"].dtype == dtype


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (lambda model: GHMC(model, full_mass=[("x", "z")]), "full_mass names 'x'"),
        (lambda model: OHMC(model, full_mass=[("W", "z")]), "full_mass names 'W', of shape (2, 3, 1)"),
        (lambda model: OHMC(model, full_mass=[("x", "y")]), "full_mass names ['y'], expected names"),
    ],
)
def test_sites_that_cannot_have_directions(kernel, named):
    def model():
        ridge()
        with pyro.plate("two", 2):
            pyro.sample("W", StiefelUniform(3, 1))

    with pytest.raises(ValueError, match="full_mass names") as error:
        drawn(kernel(model), num_samples=5, warmup_steps=0)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x[..., :-1], "the shape"),
        (lambda x: torch.cat([x[..., :1] - 2000, x[..., 1:]], -1), "weights that are not finite"),
        (torch.Tensor.abs, "generators that are not skew"),
        (lambda x: "a", "is 'a', expected a tensor"),
    ],
)
def test_directions_that_do_not_fit(change, expected):
    masses = dict(tuned().inverse_mass_matrix)
    masses["directions across", "x", "z"] = change(masses["directions across", "x", "z"])
    with pytest.raises(ValueError, match=expected):
        drawn(OHMC(ridge, inverse_mass_matrix=masses), num_samples=5, warmup_steps=0)
