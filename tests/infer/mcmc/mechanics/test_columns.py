"""Masses of columns: their drift is a composition of flows that keeps what the flow of Cayley keeps."""

import pytest
import torch

from problems.monte_carlo import STANDARD_ERRORS, deviation
from problems.phase_space import OneWay, System, langevin_bingham
from problems.targets import LANGEVIN
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics, ColumnMechanics, Metric
from pyro_manifold.manifolds import Stiefel


def test_one_mass_for_all_columns_is_the_kinetic_energy_of_cayley_and_its_flow_up_to_third_order():
    columns, cayley, inverse_mass = ColumnMechanics(), CayleyMechanics(), torch.tensor([0.6])
    X = Stiefel().random_point(5, 7, 3)
    metrics = Metric.from_inverse_mass(inverse_mass.expand(1, 4)), Metric.from_inverse_mass(inverse_mass)
    r = cayley.draw_momentum(X, metrics[1])
    assert torch.allclose(columns.kinetic_energy(X, r, metrics[0]), cayley.kinetic_energy(X, r, metrics[1]))
    assert torch.allclose(columns.velocity(X, r, metrics[0]), cayley.velocity(X, r, metrics[1]))
    errors = []
    for time in (0.02, 0.01):
        pairs = zip(columns.drift(X, r, metrics[0], time), cayley.drift(X, r, metrics[1], time), strict=True)
        errors.append(max(float((a - b).abs().max()) for a, b in pairs))
    assert 7 < errors[0] / errors[1] < 9


def test_a_single_column_moves_as_cayley_moves_it():
    X, inverse_masses = Stiefel().random_point(3, 5, 1), torch.tensor([0.3, 1.0, 2.0])
    both = Metric.from_inverse_mass(inverse_masses[:, None].expand(3, 2)), Metric.from_inverse_mass(inverse_masses)
    r = CayleyMechanics().draw_momentum(X, both[1])
    for moved, expected in zip(
        ColumnMechanics().drift(X, r, both[0], 0.7), CayleyMechanics().drift(X, r, both[1], 0.7), strict=True
    ):
        assert torch.allclose(moved, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "p"), [(3, 2), (4, 3), (7, 3), (30, 5)])
def test_the_drift_of_columns_keeps_rotations_tangency_and_orthogonality(n, p):
    """W = rXᵀ - Xrᵀ is the momentum of X → QX, under which K does not change; K itself is kept up to third order."""
    mechanics, X = ColumnMechanics(), Stiefel().random_point(6, n, p)
    metric = Metric.from_inverse_mass(torch.rand(6, p + 1) + 0.2)
    r = mechanics.draw_momentum(X, metric)
    errors = []
    for time in (0.5, 0.02, 0.01):
        moved, momentum = mechanics.drift(X, r, metric, time)
        before, after = (b @ a.mT - a @ b.mT for a, b in ((X, r), (moved, momentum)))
        assert torch.allclose(after, before, rtol=0, atol=1e-12)
        assert torch.allclose(Stiefel().tangent_projection(moved, momentum), momentum, rtol=0, atol=1e-12)
        assert Stiefel().membership_error(moved).max() < 1e-12
        change = mechanics.kinetic_energy(moved, momentum, metric) - mechanics.kinetic_energy(X, r, metric)
        errors.append(float(change.abs().max()))
    assert errors[1] / errors[2] > 7


def test_flows_in_one_order_only_are_not_reversible():
    X = Stiefel().random_point(4, 5, 2)
    metric = Metric.from_inverse_mass(torch.tensor([[0.5, 1.5, 1.0]]))
    r = ColumnMechanics().draw_momentum(X, metric)
    for mechanics, reversible in ((ColumnMechanics(), True), (OneWay(), False)):
        moved, momentum = mechanics.drift(X, r, metric, 0.3)
        back, _ = mechanics.drift(moved, -momentum, metric, 0.3)
        assert torch.allclose(back, X, rtol=0, atol=1e-12) == reversible


@pytest.mark.long
def test_each_chain_of_columns_with_masses_of_its_own_has_the_same_distribution():
    """500 chains, their inverse masses spread over a factor of ten."""
    target = LANGEVIN["V(4,3), full F"]
    F = torch.as_tensor(target.F)
    system = System(
        langevin_bingham(F, torch.zeros(4, 4), torch.zeros(3, 3)), {("X",): ColumnMechanics()}, {("X",): torch.ones(4)}
    )
    system.metrics = {("X",): Metric.from_inverse_mass(10 ** -torch.rand(500, 4))}
    state = system.state({("X",): Stiefel().random_point(500, 4, 3)})
    draws, _ = system.sample(state, 0.5, 6, iterations=200, burn_in=50)
    assert abs(deviation(target.statistic(draws[("X",)]), *target.expectation())) < STANDARD_ERRORS
