"""Optimisers beside geoopt's: least values are least, and each method finds them."""

import math

import pytest

from benchmarks.speed import optimisers
from pyro_manifold.manifolds import Stiefel
from tests.benchmarks.requirements import needs

pytestmark = [pytest.mark.long, needs("geoopt")]


@pytest.mark.parametrize("name", ["eigenvectors", "subspace", "Procrustes"])
@pytest.mark.parametrize("method", ["SGD", "Adam"])
def test_every_method_finds_the_least_value(name, method):
    (objective,) = (each for each in optimisers.objectives() if each.name == name)
    start = Stiefel().random_point(*optimisers.SHAPE)
    for build in optimisers.methods(method).values():
        assert optimisers.steps_to_tolerance(objective, build, start, 1.0 if method == "Adam" else 0.25, 600) < 600


def test_a_method_that_does_not_converge_is_reported_in_its_row():
    objective, *_ = optimisers.objectives()
    start = Stiefel().random_point(*optimisers.SHAPE)
    build = optimisers.methods("SGD")[optimisers.OURS]
    assert optimisers.steps_to_tolerance(objective, build, start, 1e-3, 5) == math.inf
    found = optimisers.measured(objective, "ours", build, start, 2)
    assert optimisers.cells(found, float("nan")) == ["over 2 steps"]
