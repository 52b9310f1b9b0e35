"""The Gaussian of a descent at its end: its bound is the log normaliser of densities that are nearly Gaussian."""

import math

import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer.descent import LocalGaussian, Points, QuasiNewton
from pyro_manifold.manifolds import Sphere


def at_the_end(points, start, steps=60):
    descent = QuasiNewton(points)
    state = descent.begin(start)
    for _ in range(steps):
        state = descent.advance(state)
        if state.energy.max() < 1e-12:
            break
    return LocalGaussian.of_path(points, state)


def bounds_of_a_gaussian(scales):
    def potential(parts):
        z = parts["x"] / scales
        return 0.5 * z.square().sum(1), {"x": z / scales}

    start = scales * torch.randn(64, len(scales))
    draws, bound = at_the_end(Points({"x": start}, potential, {}), start).draws_and_bound(torch.Generator())
    return draws, bound - scales.log().sum() - len(scales) * math.log(math.tau) / 2


def test_the_bound_of_a_gaussian_is_its_log_normaliser_or_less():
    draws, excess = bounds_of_a_gaussian(torch.full((5,), 3.0))
    assert torch.allclose(excess, torch.zeros(64), atol=1e-9)
    assert_mean(draws.square() / 9, 1.0)
    _, excess = bounds_of_a_gaussian(torch.tensor([0.05, 1.0, 1.0, 1.0, 20.0]))
    assert excess.mean() < 0  # with curvatures known in part only
    assert excess.median() > -10


def test_draws_on_a_sphere_are_unit_vectors_and_the_bound_is_its_log_normaliser():
    """The density exp(-κ(1 - x₁)) on the sphere in three dimensions has the normaliser 2π (1 - exp(-2κ)) / κ."""
    concentration = 400.0

    def potential(parts):
        gradient = torch.zeros_like(parts["x"])
        gradient[:, 0] = -concentration
        return concentration * (1 - parts["x"][:, 0]), {"x": gradient}

    points = Points({"x": torch.zeros(8, 3)}, potential, {"x": Sphere()})
    start = torch.nn.functional.normalize(torch.randn(8, 3), dim=1)
    draws, bound = at_the_end(points, start).draws_and_bound(torch.Generator().manual_seed(1))
    assert torch.allclose(draws.norm(dim=1), torch.ones(8))
    assert torch.allclose(bound, torch.tensor(math.tau / concentration).log(), atol=0.05)


def test_without_curvature_nothing_is_known():
    points = Points({"x": torch.zeros(2, 3)}, lambda parts: (parts["x"].sum(1), {"x": torch.ones_like(parts["x"])}), {})
    _, bound = at_the_end(points, torch.ones(2, 3), steps=3).draws_and_bound(torch.Generator())
    assert (bound == -torch.inf).all()
