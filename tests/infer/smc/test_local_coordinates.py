"""Coordinates about points, and the volume that they take up."""

import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer.smc import GaussianMixture, LocalCoordinates
from pyro_manifold.manifolds import Grassmann, Sphere, Stiefel


@pytest.mark.parametrize(("n", "p"), [(4, 2), (5, 1), (3, 3), (2, 2)])
def test_points_come_back_from_their_coordinates(n, p):
    centres = {"U": Stiefel().random_point(3, n, p), "x": torch.randn(3, 2)}
    local = LocalCoordinates(centres, {"U": Stiefel()})
    assert local.size == Stiefel().dimension(n, p) + 2
    coordinates = torch.randn(3, local.size)
    sites, log_volume = local.sites(coordinates)
    assert Stiefel().membership_error(sites["U"]).max() < 1e-12
    for k in range(3):
        found, volume = local.coordinates({name: x[k] for name, x in sites.items()})
        torch.testing.assert_close(found[k], coordinates[k])
        torch.testing.assert_close(volume[k], log_volume[k])
    at_centre, _ = local.sites(torch.zeros(3, local.size))
    torch.testing.assert_close(at_centre["U"], centres["U"])


@pytest.mark.parametrize(
    ("n", "p"), [(4, 2), *[pytest.param(*shape, marks=pytest.mark.long) for shape in ((3, 1), (3, 3), (5, 3))]]
)
def test_a_gaussian_in_coordinates_has_the_integral_1(n, p):
    """Over uniform matrices, which the volume must turn into the measure of coordinates."""
    local = LocalCoordinates({"U": Stiefel().random_point(1, n, p)}, {"U": Stiefel()})
    mixture = GaussianMixture(torch.zeros(1), local, 1.5 * torch.eye(local.size).unsqueeze(0))
    X = Stiefel().random_point(100_000, n, p)
    assert_mean(torch.vmap(lambda x: mixture.log_density({"U": x}).exp())(X), 1.0)


def test_sites_with_several_matrices_and_spheres():
    centres = {"U": Stiefel().random_point(2, 4, 3, 2), "s": Sphere().random_point(2, 3)}
    local = LocalCoordinates(centres, {"U": Stiefel(), "s": Sphere()})
    coordinates = torch.randn(7, 2, local.size)
    sites, log_volume = local.sites(coordinates)
    assert sites["U"].shape == (7, 2, 4, 3, 2)
    assert sites["s"].shape == (7, 2, 3)
    found, volume = local.coordinates({name: x[5, 1] for name, x in sites.items()})
    torch.testing.assert_close(found[1], coordinates[5, 1])
    torch.testing.assert_close(volume[1], log_volume[5, 1])


def test_a_manifold_without_coordinates_is_reported():
    with pytest.raises(ValueError, match=r"Site 'U' is on Grassmann.*use init='prior'"):
        LocalCoordinates({"U": torch.eye(3, 2).unsqueeze(0)}, {"U": Grassmann()})
