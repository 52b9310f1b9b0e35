"""Theorems about steps in a changing metric: order, reversal, Jacobian, distributions of velocities and draws."""

import math
from functools import partial

import pytest
import torch

from problems import curved_regression as curved
from problems.monte_carlo import STANDARD_ERRORS, assert_mean, deviation
from pyro_manifold.compiled import folded_graph
from pyro_manifold.infer.mcmc.riemannian import (
    Point,
    explicit_kick,
    factorise,
    kinetic_energy,
    lagrangian_kick,
    leapfrog,
    point_at,
    refresh,
    velocity_from,
)
from tests.infer.mcmc.riemannian import curved_space as space

KICKS = {"explicit": explicit_kick, "Lagrangian": lagrangian_kick}
over_kicks = pytest.mark.parametrize("kick", KICKS.values(), ids=KICKS)
over_fields = pytest.mark.parametrize("field", space.FIELDS.values(), ids=space.FIELDS)


def start(field, chains=16, with_volume=True):
    point = point_at(torch.randn(chains, 2), potential=curved.potential, field=field, with_volume=with_volume)
    return point, velocity_from(torch.randn_like(point.position), point)


def stepper(kick, field, with_volume=True):
    return partial(leapfrog, kick=kick, potential=curved.potential, field=field, with_volume=with_volume)


def energy_order(kick, field, with_volume=True):
    """Slope of log energy error, φ + ½ vᵀGv, against log step over a fixed time."""
    point, velocity = start(field, with_volume=with_volume)
    step = stepper(kick, field, with_volume)

    def one(step_size, velocity, *point):
        end, moved, _ = step(Point(*point), velocity, step_size)
        return *end, moved  # of tensors: graphs of torch 2.6 have no named tuples

    traced = folded_graph(one, torch.tensor(0.1), velocity, *point)

    def total(point, velocity):
        return point.energy + with_volume * point.half_log_determinant + kinetic_energy(point, velocity)

    errors, counts = [], [48, 96]
    for count in counts:
        end, moved = point, velocity
        for _ in range(count):
            *end, moved = traced(torch.tensor(1 / count), moved, *end)
            end = Point(*end)
        errors.append(float((total(end, moved) - total(point, velocity)).abs().mean().log2()))
    return (errors[0] - errors[-1]) / (len(counts) - 1)


@pytest.mark.parametrize(
    ("kick", "field"),
    [
        ("Lagrangian", "pull-back"),
        pytest.param("Lagrangian", "dense", marks=pytest.mark.long),
        pytest.param("explicit", "pull-back", marks=pytest.mark.long),
    ],
)
def test_energy_error_is_of_second_order(kick, field):
    kick, field = KICKS[kick], space.FIELDS[field]
    assert abs(energy_order(kick, field) - 2) < 0.15


def test_energy_error_is_of_second_order_without_the_volume():
    assert abs(energy_order(lagrangian_kick, space.FIELDS["pull-back"], with_volume=False) - 2) < 0.15


@pytest.mark.parametrize("kick", [lagrangian_kick, pytest.param(explicit_kick, marks=pytest.mark.long)])
def test_a_wrong_connection_has_an_energy_error_that_does_not_shrink(kick):
    assert energy_order(kick, space.WithoutConnection(curved.embedding, 2, 7)) < 0.3


@over_kicks
def test_every_chain_may_have_a_step_of_its_own(kick):
    step = stepper(kick, space.FIELDS["pull-back"])
    point, velocity = start(space.FIELDS["pull-back"], chains=2)
    together, _, volumes = step(point, velocity, torch.tensor([0.1, 0.4]))
    for chain, step_size in enumerate((0.1, 0.4)):
        alone, _, volume = step(point, velocity, step_size)
        assert torch.allclose(together.position[chain], alone.position[chain])
        assert torch.allclose(volumes[chain], volume[chain])


@over_fields
def test_forward_flip_forward_returns_to_the_start(field):
    step = stepper(lagrangian_kick, field)
    point, velocity = start(field)
    end, moved, volume = point, velocity, 0.0
    for _ in range(5):
        end, moved, change = step(end, moved, 0.1)
        volume = volume + change
    back, returned, back_volume = end, -moved, 0.0
    for _ in range(5):
        back, returned, change = step(back, returned, 0.1)
        back_volume = back_volume + change
    assert torch.allclose(back.position, point.position, rtol=0, atol=1e-10)
    assert torch.allclose(returned, -velocity, rtol=0, atol=1e-10)
    assert torch.allclose(back_volume, -volume, rtol=0, atol=1e-10)
    assert volume.abs().max() > 0.01


def jacobian_mismatch(kick, field):
    """Tracked log volume change less the log determinant of the step by autograd, for one chain."""
    step = stepper(kick, field)

    def mapped(z):
        point = point_at(z[None, :2], potential=curved.potential, field=field, with_volume=True)
        moved, velocity, log_volume = step(point, z[None, 2:], 0.3)
        return torch.cat([moved.position[0], velocity[0]]), log_volume[0]

    jacobian, tracked = torch.func.jacfwd(mapped, has_aux=True)(torch.randn(4))
    return abs(float(tracked - torch.linalg.slogdet(jacobian).logabsdet))


@over_fields
def test_the_jacobian_of_a_step_is_that_of_autograd(field):
    assert jacobian_mismatch(lagrangian_kick, field) < 1e-10


@pytest.mark.parametrize("kick", [space.kick_with_half_a_jacobian, explicit_kick])
def test_the_jacobian_test_can_fail(kick):
    assert jacobian_mismatch(kick, space.FIELDS["pull-back"]) > 1e-3


def test_both_ways_to_give_a_metric_agree_on_all_that_follows_from_it():
    """The lower connection of a pull-back is Jᵀf'': Gauss's formula, against Christoffel's."""
    position, first, second = torch.randn(3, 20, 2)
    pull_back, dense = space.FIELDS.values()
    metric, pull = pull_back.at(position)
    assert torch.allclose(metric, dense.at(position)[0])
    weights = metric + torch.eye(2)
    assert torch.allclose(pull(weights), dense.at(position)[1](weights))
    for field in (pull_back, dense):
        matrix = field.connection_matrix(position, first)
        assert torch.allclose(matrix, pull_back.connection_matrix(position, first))
        assert torch.allclose((matrix @ first.unsqueeze(-1)).squeeze(-1), field.connection(position, first))
        swapped = field.connection_matrix(position, second) @ first.unsqueeze(-1)
        assert torch.allclose(matrix @ second.unsqueeze(-1), swapped)


@over_fields
def test_the_gradient_of_the_volume_is_that_of_the_log_determinant(field):
    position = torch.randn(20, 2)
    point = point_at(position, potential=curved.potential, field=field, with_volume=True)
    expected = torch.func.vmap(torch.func.grad(lambda q: curved.energy(q) + 0.5 * torch.logdet(curved.metric(q))))
    assert torch.allclose(point.gradient, expected(position))


def test_velocities_have_the_inverse_metric_as_covariance_and_refreshing_keeps_it():
    count = 200_000
    q = torch.tensor([1.0, 0.5])
    one = point_at(q[None], potential=curved.potential, field=space.FIELDS["dense"], with_volume=True)
    point = Point(*(value.expand(count, *value.shape[1:]) for value in one))
    drawn = velocity_from(torch.randn_like(point.position), point)
    refreshed = refresh(point, drawn, 0.7, torch.randn_like(drawn))
    error = 5 * math.sqrt(2 / count)
    root = torch.linalg.cholesky(curved.metric(q))
    for velocity in (drawn, refreshed):
        whitened = velocity @ root
        assert torch.allclose(whitened.mT @ whitened / count, torch.eye(2), rtol=0, atol=error)
    correlation = (drawn @ root).mT @ (refreshed @ root) / count
    assert torch.allclose(correlation, 0.7 * torch.eye(2), rtol=0, atol=error)


# ---- factorisation ----------------------------------------------------------------------------------------------


def test_a_singular_metric_is_regularised_and_reported():
    singular = torch.ones(3, 3)
    indefinite = torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    broken = torch.full((3, 3), torch.nan)
    metrics = torch.stack([torch.eye(3), singular, indefinite, broken])
    factor, moved, jitter = factorise(metrics)
    assert torch.allclose(factor[0], torch.eye(3), rtol=0, atol=1e-12)
    assert jitter[0] == 0
    assert 0 < jitter[1] < 1e-6
    assert torch.allclose(factor[1] @ factor[1].mT, moved[1])
    assert factor[2:].diagonal(dim1=-2, dim2=-1).isnan().any(-1).all()


# ---- distributions ----------------------------------------------------------------------------------------------


def draws(target, chains=1000, iterations=40, **options):
    return space.sample(0.35, 4, iterations, burn_in=20, chains=chains, target=target, **options)


@pytest.mark.parametrize(
    ("target", "persistence"), [pytest.param("posterior", 0.0, marks=pytest.mark.long), ("jeffreys", 0.9)]
)
def test_distribution_of_the_adjusted_version(target, persistence):
    statistics, acceptance = draws(target, chains=400, persistence=persistence)
    assert acceptance < 0.97  # rejections, or there would be nothing to adjust
    for values, truth in zip(statistics, curved.expectations(target), strict=True):
        assert_mean(values, truth)


@pytest.mark.long
def test_distribution_of_the_adjusted_version_in_a_dense_metric():
    statistics, _ = draws("posterior", field="dense")
    for values, truth in zip(statistics, curved.expectations("posterior"), strict=True):
        assert_mean(values, truth)


@pytest.mark.long
@pytest.mark.parametrize("broken", [space.WithoutJacobian, space.WithoutVolume, space.WithoutReversal])
def test_the_distribution_test_can_fail(broken):
    statistics, acceptance = draws("posterior", persistence=0.9, kind=broken)
    truths = curved.expectations("posterior")
    assert acceptance > 0.5
    worst = max(abs(deviation(values, truth)) for values, truth in zip(statistics, truths, strict=True))
    assert worst > STANDARD_ERRORS


@pytest.mark.long
@pytest.mark.parametrize("target", ["posterior", "jeffreys"])
def test_the_unadjusted_distribution_is_near_and_the_targets_differ_by_the_root_of_the_determinant(target):
    options = {"target": target, "adjusted": False, "persistence": 0.9}
    statistics, _ = space.sample(0.08, 3, iterations=50, burn_in=50, chains=1000, **options)
    truths = {name: curved.expectations(name) for name in ("posterior", "jeffreys")}
    for index, values in enumerate(statistics):
        apart = abs(truths["posterior"][index] - truths["jeffreys"][index])
        assert abs(float(values.mean()) - truths[target][index]) < apart / 8
