"""Volume elements of projections from tangent spaces, against determinants of Jacobians and integrals."""

import math

import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.manifolds import Constant, Euclidean, Grassmann, Manifold, SpecialOrthogonal, Sphere, Stiefel

CASES = {
    "unit vectors": (Sphere(), (4,)),
    "V(3, 1)": (Stiefel(), (3, 1)),
    "V(3, 2)": (Stiefel(), (3, 2)),
    "V(5, 4)": (Stiefel(), (5, 4)),
    "V(7, 3)": (Stiefel(), (7, 3)),
    "O(4)": (Stiefel(), (4, 4)),
    "SO(3)": (SpecialOrthogonal(), (3, 3)),
    "Euclidean": (Euclidean(), (3,)),
}


def tangent_basis(manifold, point):
    """Orthonormal basis of the tangent space as columns, ``(entries, dimension)``."""
    units = torch.eye(point.numel()).reshape(-1, *point.shape)
    projected = torch.stack([manifold.tangent_projection(point, unit).flatten() for unit in units])
    left, sizes, _ = torch.linalg.svd(projected)
    return left[:, sizes > 0.5]


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_determinant_of_the_jacobian(name):
    manifold, shape = CASES[name]
    x = manifold.random_point(*shape)
    delta = manifold.tangent_projection(x, torch.randn(*shape))
    basis = tangent_basis(manifold, x)
    end = tangent_basis(manifold, manifold.projection(x + delta))

    def moved(coordinates):
        return end.mT @ manifold.projection(x + delta + (basis @ coordinates).reshape(shape)).flatten()

    steps = 1e-5 * torch.eye(basis.shape[1])
    jacobian = torch.stack([(moved(step) - moved(-step)) / 2e-5 for step in steps], 1)
    expected = torch.linalg.slogdet(jacobian)[1]
    assert torch.allclose(manifold.log_volume_of_projection(x, delta), expected, atol=1e-7)


def test_batches_and_points_themselves():
    x = Stiefel().random_point(6, 2, 5, 3)
    delta = Stiefel().tangent_projection(x, torch.randn(6, 2, 5, 3))
    found = Stiefel().log_volume_of_projection(x, delta)
    assert found.shape == (6, 2)
    assert torch.allclose(found[1, 1], Stiefel().log_volume_of_projection(x[1, 1], delta[1, 1]))
    assert torch.allclose(Stiefel().log_volume_of_projection(x, 0 * delta), torch.zeros(6, 2))
    assert Constant().log_volume_of_projection(torch.ones(2, 3), torch.ones(2, 3)).tolist() == [0.0, 0.0]


def test_tangent_vectors_that_are_not_finite():
    x = Stiefel().random_point(2, 4, 2)
    delta = Stiefel().tangent_projection(x, torch.randn(2, 4, 2))
    delta[0, 0, 0] = torch.inf
    assert Stiefel().log_volume_of_projection(x, delta).isfinite().tolist() == [False, True]


def test_the_integral_over_a_tangent_space_is_the_volume_that_it_reaches():
    """Of lines in the plane (Grassmann), and of the rotations of three dimensions within a ball."""
    t = torch.linspace(-2e3, 2e3, 400_001)
    steps = torch.stack([torch.zeros_like(t), t], -1).unsqueeze(-1)
    x = torch.tensor([[1.0], [0.0]]).expand_as(steps)
    volume = torch.trapezoid(Grassmann().log_volume_of_projection(x, steps).exp(), t)
    assert abs(volume - math.pi) < 2e-3  # the tails beyond 2,000 have 1e-3
    # Rotations: a Gaussian about the identity, reweighted, has the volume as its mean weight.
    scale, draws = 1.5, 200_000
    noise = scale * torch.randn(draws, 3)
    skew = torch.zeros(draws, 3, 3)
    row, column = torch.tril_indices(3, 3, -1)
    skew[:, row, column], skew[:, column, row] = noise / math.sqrt(2), -noise / math.sqrt(2)
    at = torch.eye(3).expand(draws, 3, 3)
    log_density = -(noise / scale).square().sum(1) / 2 - 3 * math.log(scale) - 1.5 * math.log(math.tau)
    near = noise.square().sum(1) < 9  # a ball, within which weights are bounded
    weights = (SpecialOrthogonal().log_volume_of_projection(at, skew) - log_density).exp() * near
    # The rotation by an angle a has a tangent vector of length √2 tan(a) for the polar factor of I + A, a < π/2.
    most = torch.atan(torch.tensor(3 / math.sqrt(2)))
    angles = torch.linspace(0.0, float(most), 100_001)
    # Volume of rotations by an angle a in the metric of the entries: 4π (2 sin(a/2))² √2³ da.
    expected = torch.trapezoid(8 * math.sqrt(2) * math.pi * (2 * (angles / 2).sin()).square(), angles)
    assert_mean(weights, expected)


class Line(Manifold):
    event_dim = 1
    dimension = random_point = tangent_projection = projection = retraction = geodesic_flow = membership_error = None


def test_a_manifold_without_it_is_named():
    with pytest.raises(NotImplementedError, match="Line has no log_volume_of_projection"):
        Line().log_volume_of_projection(torch.ones(1), torch.ones(1))
