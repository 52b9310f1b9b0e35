"""Descents of many chains: minima that are known, along manifolds, and what walls and bad metrics do."""

import pytest
import torch

from pyro_manifold.infer.descent import NaturalGradient, Points, QuasiNewton, rows_of, with_rows
from pyro_manifold.manifolds import Stiefel


def points_of(energy, example, manifolds=None):
    """Points whose potential is a function ``{site: (chains, ...)} -> (chains,)``."""

    def potential(sites):
        leaves = {name: x.detach().requires_grad_() for name, x in sites.items()}
        values = energy(leaves)
        gradients = torch.autograd.grad(values.nan_to_num(0.0, 0.0, 0.0).sum(), list(leaves.values()))
        return values.detach(), dict(zip(leaves, gradients, strict=True))

    return Points(example, potential, manifolds or {})


def valley(sites):
    """Rosenbrock's, ½|r|² of the residuals r = √2 (1 - x, 10 (y - x²)); its minimum is at (1, 1)."""
    x, y = sites["x"].unbind(1)
    return (1 - x).square() + 100 * (y - x.square()).square()


def gauss_newton(rows):
    x = rows[:, 0]
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    jacobian = torch.stack([torch.stack([-one, zero], -1), torch.stack([-20 * x, 10 * one], -1)], 1)
    return 2 * jacobian.mT @ jacobian


def ways(points, metric):
    return {"L-BFGS": QuasiNewton(points), "natural": NaturalGradient(points, metric)}


def after(descent, at, steps):
    state = descent.begin(at)
    for _ in range(steps):
        state = descent.advance(state)
    return state


@pytest.mark.parametrize(("way", "steps"), [("L-BFGS", 120), ("natural", 40)])
def test_a_curved_valley_is_passed(way, steps):
    starts = torch.tensor([[-1.2, 1.0], [3.0, -2.0], [0.0, 5.0]])
    descent = ways(points_of(valley, {"x": starts}), gauss_newton)[way]
    state = after(descent, starts, steps)
    torch.testing.assert_close(state.at, torch.ones(3, 2), atol=1e-4, rtol=0)
    assert (descent.predicted_decrease(state) < 1e-6).all()


@pytest.mark.parametrize("way", ["L-BFGS", "natural"])
def test_each_chain_goes_as_it_does_alone_and_never_up(way):
    starts = torch.tensor([[-1.2, 1.0], [3.0, -2.0]])
    descent = ways(points_of(valley, {"x": starts}), gauss_newton)[way]
    together, alone = descent.begin(starts), descent.begin(starts[1:])
    for _ in range(20):
        before = together.energy
        together, alone = descent.advance(together), descent.advance(alone)
        assert (together.energy <= before).all()
    torch.testing.assert_close(together.at[1:], alone.at)
    rows = torch.tensor([1])
    torch.testing.assert_close(with_rows(together, rows, rows_of(together, rows)).at, together.at)


def test_tails_in_which_the_energy_curves_downwards_are_left_in_few_steps():
    """Fifty values about 3000 with errors of Student's t: steps of length 1 would take 3,000 evaluations."""
    values = 3000 + torch.linspace(-2, 2, 50)

    def energy(sites):
        return 2 * (1 + (sites["x"] - values).square() / 3).log().sum(1)

    starts = torch.tensor([[0.0], [-500.0], [2990.0]])
    state = after(QuasiNewton(points_of(energy, {"x": starts})), starts, 40)
    torch.testing.assert_close(state.at, torch.full((3, 1), 3000.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("way", ["L-BFGS", "natural"])
def test_a_start_without_a_finite_energy_stays_and_others_go(way):
    def half_line(sites):
        x = sites["x"][:, 0]
        return torch.where(x > 0, 50 * x.square(), torch.inf)

    starts = torch.tensor([[1.0], [-1.0]])
    descent = ways(points_of(half_line, {"x": starts}), lambda rows: torch.full((len(rows), 1, 1), 100.0))[way]
    state = after(descent, starts, 30)
    assert 0 <= float(state.at[0]) < 0.05
    assert float(state.at[1]) == -1


@pytest.mark.parametrize(("way", "steps"), [("L-BFGS", 80), ("natural", 60)])
def test_matrices_go_along_their_manifold_to_the_polar_factor(way, steps):
    """-tr FᵀX over orthonormal X is least at the polar factor of F, where it is minus the sum of singular values."""
    F = torch.randn(6, 3)

    def energy(sites):
        return 10 - (F * sites["X"]).sum((1, 2)) + sites["y"].square().sum(1)

    starts = {"X": Stiefel().random_point(4, 6, 3), "y": torch.randn(4, 2)}
    points = points_of(energy, starts, {"X": Stiefel()})
    # A metric that is right for y only; damping must do for the rest.
    state = after(ways(points, lambda rows: torch.eye(20).expand(len(rows), 20, 20))[way], points.rows(starts), steps)
    found = points.parts(state.at)
    assert Stiefel().membership_error(found["X"]).max() < 1e-12
    left, _, right = torch.linalg.svd(F, full_matrices=False)
    torch.testing.assert_close(found["X"], (left @ right).expand(4, 6, 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(found["y"], torch.zeros(4, 2), atol=1e-3, rtol=0)


def test_natural_gradients_need_few_steps_where_scales_differ_by_a_million():
    scales = torch.logspace(0, 6, 10)

    def energy(sites):
        return (scales * sites["x"].square()).sum(1) / 2

    starts = torch.randn(5, 10)
    descent = NaturalGradient(points_of(energy, {"x": starts}), lambda rows: scales.diag().expand(len(rows), 10, 10))
    assert (after(descent, starts, 20).energy < 1e-2).all()


def test_the_metric_is_asked_for_only_where_a_step_is_taken():
    asked = []

    def metric(rows):
        asked.append(len(rows))
        return torch.ones(len(rows), 1, 1)  # of a curvature of 10,000: only much damping leads lower

    starts = torch.ones(3, 1)
    points = points_of(lambda sites: 5000 * sites["x"].square().sum(1), {"x": starts})
    state = after(NaturalGradient(points, metric), starts, 5)
    assert asked == [3]
    assert torch.equal(state.at, starts)
    assert (after(NaturalGradient(points, metric), starts, 40).energy < 5000).all()
