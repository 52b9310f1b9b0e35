"""Theorems about the leapfrog step: order, reversibility, volume, and consistency of momentum and energy."""

import math

import pytest
import torch

from problems.phase_space import (
    System,
    WrongColumnMomentum,
    WrongDrift,
    WrongEnergy,
    WrongGeodesicEnergy,
    WrongMomentum,
    joint_position,
    joint_system,
    langevin_bingham,
    phase_space_map,
    spread_masses,
    tangent_basis,
)
from pyro_manifold.infer.mcmc.mechanics import (
    CayleyMechanics,
    ColumnMechanics,
    EuclideanMechanics,
    GeodesicMechanics,
    Metric,
    State,
)
from pyro_manifold.manifolds import Sphere, Stiefel

MECHANICS = {"Cayley": CayleyMechanics(), "geodesic": GeodesicMechanics(Stiefel()), "columns": ColumnMechanics()}
over_mechanics = pytest.mark.parametrize("mechanics", MECHANICS.values(), ids=MECHANICS)


def symmetric(size):
    root = torch.randn(size, size)
    return (root + root.mT) / 2


def matrix_system(n, p, mechanics=None, scale=1.0, inverse_mass=0.6):
    potential = langevin_bingham(scale * torch.randn(n, p), scale * symmetric(n), symmetric(p))
    mechanics = mechanics or CayleyMechanics()
    return System(potential, {("X",): mechanics}, {("X",): spread_masses(mechanics, p, inverse_mass)})


def energy_order(system, state):
    """Slope of log energy error against log step, over a fixed time."""
    steps = [8 * 2**k for k in range(2, 6)]
    errors = []
    for count in steps:
        end = system.integrate(state, 1.0 / count, count)
        errors.append((system.energy(end) - system.energy(state)).abs().mean().log2())
    x = -torch.tensor(steps, dtype=torch.float64).log2()
    y = torch.stack(errors)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


@pytest.mark.parametrize(
    ("n", "p"), [(8, 3), *(pytest.param(n, p, marks=pytest.mark.long) for n, p in ((3, 1), (4, 4)))]
)
@over_mechanics
def test_energy_error_is_of_second_order(mechanics, n, p):
    system = matrix_system(n, p, mechanics)
    state = system.state({("X",): Stiefel().random_point(64, n, p)})
    assert abs(energy_order(system, state) - 2) < 0.1


def test_energy_error_of_the_joint_step_is_of_second_order():
    system = joint_system()
    assert abs(energy_order(system, system.state(joint_position(64))) - 2) < 0.1


def test_a_mixed_pairing_has_an_energy_error_that_does_not_shrink():
    system = matrix_system(8, 3, WrongEnergy())
    state = system.state({("X",): Stiefel().random_point(64, 8, 3)})
    assert energy_order(system, state) < 0.5


@pytest.mark.parametrize("steps", [1, 50])
@over_mechanics
def test_forward_flip_forward_returns_to_the_start(mechanics, steps):
    system = joint_system(mechanics)
    start = system.state(joint_position(5))
    end = system.integrate(start, 0.1, steps)
    flipped = end._replace(momentum={block: -r for block, r in end.momentum.items()})
    back = system.integrate(flipped, 0.1, steps)
    for block in start.position:
        assert torch.allclose(back.position[block], start.position[block], rtol=0, atol=1e-10)
        assert torch.allclose(back.momentum[block], -start.momentum[block], rtol=0, atol=1e-10)


def step_jacobian(mechanics, n, p, step_size=0.3):
    system = matrix_system(n, p, mechanics)
    start = Stiefel().random_point(n, p)

    def step(X, r):
        position = {("X",): X.unsqueeze(0)}
        energy, gradient = system.potential(position)
        state = State(position, {("X",): r.unsqueeze(0)}, energy, gradient)
        state = system.integrate(state, step_size, 1)
        return state.position[("X",)][0], state.momentum[("X",)][0]

    phase_space, mapped = phase_space_map(step, start)
    dimension = Stiefel().dimension(n, p)
    z = torch.cat([torch.zeros(dimension), torch.randn(dimension)])
    end, _ = phase_space(z)
    end = end.detach()
    basis = tangent_basis(end)
    return torch.func.jacfwd(lambda z: mapped(z, end, basis))(z)


@pytest.mark.parametrize(("n", "p"), [(3, 1), (3, 2), (3, 3), (5, 2)])
@over_mechanics
def test_step_preserves_volume(mechanics, n, p):
    determinant = torch.linalg.det(step_jacobian(mechanics, n, p))
    assert abs(float(determinant.abs()) - 1) < 1e-10


def test_the_volume_test_can_fail():
    determinant = torch.linalg.det(step_jacobian(WrongDrift(), 3, 2))
    assert abs(float(determinant.abs()) - 1) > 1e-3


def metric_of(mechanics, p, inverse_mass):
    return Metric.from_inverse_mass(torch.as_tensor(spread_masses(mechanics, p, inverse_mass)).unsqueeze(0))


def whitened_covariance(mechanics, n, p, inverse_mass=0.3, draws=100_000):
    """Covariance of momentum draws times the Hessian of K, in tangent coordinates: I for a consistent pair."""
    metric = metric_of(mechanics, p, inverse_mass)
    X = Stiefel().random_point(n, p)
    basis = tangent_basis(X)

    def energy(coordinates):
        momentum = torch.tensordot(coordinates, basis, 1)
        return mechanics.kinetic_energy(X.unsqueeze(0), momentum.unsqueeze(0), metric)[0]

    hessian = torch.func.hessian(energy)(torch.zeros(len(basis)))
    momenta = mechanics.draw_momentum(X.expand(draws, n, p), metric)
    tangency = Stiefel().tangent_projection(X, momenta) - momenta
    assert tangency.abs().max() < 1e-12
    coordinates = momenta.flatten(1) @ basis.flatten(1).mT
    root = torch.linalg.cholesky(hessian)
    whitened = coordinates @ root
    return whitened.mT @ whitened / draws


@pytest.mark.parametrize(("n", "p"), [(3, 1), (3, 2), (4, 4), (6, 3)])
@over_mechanics
def test_momentum_has_the_distribution_of_the_kinetic_energy(mechanics, n, p):
    covariance = whitened_covariance(mechanics, n, p)
    # Entries of a sample covariance of N(0, I) have standard error √(1/N), on the diagonal √(2/N).
    error = math.sqrt(1 / 100_000) * (1 + (math.sqrt(2) - 1) * torch.eye(len(covariance)))
    assert ((covariance - torch.eye(len(covariance))).abs() < 5 * error).all()


@pytest.mark.parametrize(
    "mechanics", [WrongMomentum(), WrongEnergy(), WrongGeodesicEnergy(Stiefel()), WrongColumnMomentum()]
)
def test_each_wrong_pairing_is_noticed(mechanics):
    covariance = whitened_covariance(mechanics, 3, 2)
    assert (covariance - torch.eye(len(covariance))).abs().max() > 0.2


@pytest.mark.parametrize("inverse_mass", [torch.tensor([0.3]), torch.tensor([0.3, 2.0, 1.0]), None])
def test_momentum_of_flat_blocks_has_the_distribution_of_the_kinetic_energy(inverse_mass):
    if inverse_mass is None:
        root = torch.randn(3, 3)
        inverse_mass = root @ root.mT + torch.eye(3)
    metric, mechanics = Metric.from_inverse_mass(inverse_mass.unsqueeze(0)), EuclideanMechanics()
    draws = mechanics.draw_momentum(torch.zeros(200_000, 3), metric)
    hessian = torch.func.hessian(lambda r: mechanics.kinetic_energy(r[None], r[None], metric)[0])(torch.zeros(3))
    whitened = draws @ torch.linalg.cholesky(hessian)
    assert torch.allclose(whitened.mT @ whitened / len(draws), torch.eye(3), atol=5 * math.sqrt(2 / len(draws)))


@pytest.mark.long
@pytest.mark.parametrize("mechanics", [CayleyMechanics(), ColumnMechanics()])
def test_a_hundred_thousand_steps_stay_on_the_manifold(mechanics):
    system = matrix_system(10, 4, mechanics)
    start = system.state({("X",): Stiefel().random_point(1, 10, 4)})
    state, errors = start, []
    for _ in range(100):
        state = system.integrate(state, 0.1, 1)
        errors.append(float((system.energy(state) - system.energy(start)).abs()))
    state = system.integrate(state, 0.1, 100_000)
    assert Stiefel().membership_error(state.position[("X",)]).max() < 1e-12
    # The energy of a symplectic integrator swings and does not drift.
    assert float((system.energy(state) - system.energy(start)).abs()) < 4 * max(errors)


@pytest.mark.parametrize(
    "mechanics",
    [
        MECHANICS["Cayley"],
        *(pytest.param(MECHANICS[name], marks=pytest.mark.long) for name in ("geodesic", "columns")),
    ],
)
def test_single_precision_stays_on_the_manifold_when_restored_once_a_trajectory(mechanics):
    torch.set_default_dtype(torch.float32)
    system = matrix_system(10, 4, mechanics)
    state = system.state({("X",): Stiefel().random_point(20, 10, 4)})
    worst = 0.0
    for _ in range(10):
        state = system.integrate(system.refresh(state), 0.1, 100)
        restored = {block: move.restore(state.position[block]) for block, move in system.mechanics.items()}
        state = state._replace(position=restored)
        worst = max(worst, float(Stiefel().membership_error(restored[("X",)]).max()))
    assert worst < 1e-5


# ---- times and masses of each chain, velocities, refreshed momenta ------------------------------------------------


def kinds():
    """Mechanics, a position of three chains, and inverse masses of each chain, for every kind of block."""
    root = torch.randn(3, 4, 4)
    scalars = torch.tensor([0.3, 1.0, 2.5])
    sphere = Sphere().random_point(3, 4)
    return {
        "Cayley": (CayleyMechanics(), Stiefel().random_point(3, 5, 2), scalars),
        "Cayley, in a plate": (CayleyMechanics(), Stiefel().random_point(3, 2, 4, 3), scalars),
        "columns": (ColumnMechanics(), Stiefel().random_point(3, 5, 2), torch.rand(3, 3) + 0.5),
        "columns, in a plate": (ColumnMechanics(), Stiefel().random_point(3, 2, 4, 3), torch.rand(3, 8) + 0.5),
        "geodesic": (GeodesicMechanics(Stiefel()), Stiefel().random_point(3, 5, 2), scalars),
        "great circle": (GeodesicMechanics(Sphere()), sphere, scalars),
        "diagonal": (EuclideanMechanics(), torch.randn(3, 4), torch.rand(3, 4) + 0.5),
        "dense": (EuclideanMechanics(), torch.randn(3, 4), root @ root.mT + torch.eye(4)),
    }


over_kinds = pytest.mark.parametrize(
    "kind",
    [
        "Cayley",
        "Cayley, in a plate",
        "columns",
        "columns, in a plate",
        "geodesic",
        "great circle",
        "diagonal",
        "dense",
    ],
)


@over_kinds
def test_each_chain_may_have_its_own_time_and_mass(kind):
    """To 1e-8: torch's matrix exponential of a batch and of one matrix differ by some 1e-10."""
    mechanics, position, inverse_masses = kinds()[kind]
    metric = Metric.from_inverse_mass(inverse_masses)
    momentum = mechanics.draw_momentum(position, metric)
    gradient, times = torch.randn_like(position), torch.tensor([0.2, -0.1, 0.0])
    moved = mechanics.drift(position, momentum, metric, times)
    kicked = mechanics.kick(position, momentum, gradient, times)
    energy = mechanics.kinetic_energy(position, momentum, metric)
    assert energy.shape == (3,)
    for chain in range(3):
        alone = slice(chain, chain + 1)
        own = Metric.from_inverse_mass(inverse_masses[alone])
        expected = mechanics.drift(position[alone], momentum[alone], own, float(times[chain]))
        for found, value in zip(moved, expected, strict=True):
            assert torch.allclose(found[alone], value, rtol=0, atol=1e-8)
        expected = mechanics.kick(position[alone], momentum[alone], gradient[alone], float(times[chain]))
        assert torch.allclose(kicked[alone], expected, rtol=0, atol=1e-8)
        assert torch.allclose(energy[alone], mechanics.kinetic_energy(position[alone], momentum[alone], own))
    back = mechanics.drift(*moved, metric, -times)
    for found, value in zip(back, (position, momentum), strict=True):
        assert torch.allclose(found, value, rtol=0, atol=1e-8)


@over_kinds
def test_the_velocity_is_that_of_the_drift_and_makes_twice_the_kinetic_energy(kind):
    """K is quadratic in r, and r a covector: ⟨r, velocity⟩ = 2K."""
    mechanics, position, inverse_masses = kinds()[kind]
    metric = Metric.from_inverse_mass(inverse_masses)
    momentum = mechanics.draw_momentum(position, metric)

    def at(time):
        return mechanics.drift(position, momentum, metric, time)[0]

    _, velocity = torch.func.jvp(at, (torch.zeros(3),), (torch.ones(3),))
    assert torch.allclose(mechanics.velocity(position, momentum, metric), velocity, rtol=0, atol=1e-10)
    power = (momentum * velocity).flatten(1).sum(1)
    assert torch.allclose(power, 2 * mechanics.kinetic_energy(position, momentum, metric))


@over_mechanics
def test_steps_of_either_sign_and_of_each_chain(mechanics):
    system = joint_system(mechanics)
    start = system.state(joint_position(4))
    step_sizes = torch.tensor([0.1, -0.1, 0.03, 0.2])
    end = system.integrate(start, step_sizes, 20)
    back = system.integrate(end, -step_sizes, 20)
    alone = system.integrate(start, 0.03, 20)
    for block in start.position:
        assert torch.allclose(back.position[block], start.position[block], rtol=0, atol=1e-10)
        assert torch.allclose(end.position[block][2], alone.position[block][2], rtol=0, atol=1e-10)
        assert not torch.allclose(end.position[block][0], alone.position[block][0], rtol=0, atol=1e-3)


@over_mechanics
def test_refreshing_in_part_keeps_the_distribution_and_that_share(mechanics):
    """Of momenta at one point, in coordinates in which they are standard normal: covariance I, correlation cos θ."""
    draws, persistence = 200_000, 0.8
    metric = metric_of(mechanics, 2, 0.3)
    X = Stiefel().random_point(4, 2)
    basis = tangent_basis(X)

    def energy(coordinates):
        return mechanics.kinetic_energy(X[None], torch.tensordot(coordinates, basis, 1)[None], metric)[0]

    root = torch.linalg.cholesky(torch.func.hessian(energy)(torch.zeros(len(basis))))
    position = X.expand(draws, 4, 2)
    before = mechanics.draw_momentum(position, metric)
    after = mechanics.refresh(position, before, metric, persistence, torch.randn_like(position))
    before, after = (r.flatten(1) @ basis.flatten(1).mT @ root for r in (before, after))
    error = 5 * math.sqrt(2 / draws)
    identity = torch.eye(len(basis))
    assert torch.allclose(after.mT @ after / draws, identity, rtol=0, atol=error)
    assert torch.allclose(before.mT @ after / draws, persistence * identity, rtol=0, atol=error)
