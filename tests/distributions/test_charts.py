"""Charts are exact with respect to Haar measure and work wherever Pyro asks for a transform."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import biject_to, transform_to

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions.transforms import HouseholderTransform, PolarTransform
from pyro_manifold.manifolds import Stiefel

SHAPES = [(1, 1), (3, 1), (3, 2), (4, 4), (9, 3)]
CHARTS = {"polar": lambda n, p: constraints.stiefel, "householder": constraints.householder_stiefel}

over_charts = pytest.mark.parametrize("chart", CHARTS)
over_shapes = pytest.mark.parametrize(("n", "p"), SHAPES)


def coordinates(chart, n, p, *batch):
    shape = (n, p) if chart == "polar" else (n * p - p * (p - 1) // 2,)
    return torch.randn(*batch, *shape)


@over_charts
@over_shapes
def test_image_is_on_the_manifold_and_the_pseudo_inverse_leads_back(chart, n, p):
    transform = biject_to(CHARTS[chart](n, p))
    z = coordinates(chart, n, p, 5, 2)
    X = transform(z)
    assert X.shape == (5, 2, n, p)
    assert transform.codomain.check(X).all()
    assert torch.allclose(transform(transform.inv(X)), X, atol=1e-12)
    assert transform.inv(X).shape == z.shape
    assert transform.log_abs_det_jacobian(z, X).shape == (5, 2)
    assert transform.forward_shape(z.shape) == X.shape
    assert transform.inverse_shape(X.shape) == z.shape


@over_charts
@over_shapes
def test_gaussian_coordinates_give_haar_measure(chart, n, p):
    """The chart's density over z is N(0, I); that it is exact means that its image is uniform."""
    transform = biject_to(CHARTS[chart](n, p))
    z = coordinates(chart, n, p, 40_000)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z[:3]).flatten(1).sum(1)
    assert torch.allclose(transform.log_abs_det_jacobian(z[:3], None), expected)
    X = transform(z)
    for Y in (X, Stiefel().random_point(n, n) @ X, X @ Stiefel().random_point(p, p)):
        assert_mean(Y[:, 0, 0], 0.0)
        assert_mean(Y[:, 0, 0] ** 2, 1 / n, truth_error=1e-12)
        assert_mean(Y[:, -1, -1] ** 4, 3 / (n * (n + 2)), truth_error=1e-12)
        if p > 1:
            assert_mean(Y[:, 0, 0] * Y[:, 1, 1], 0.0)
            # E X₁₁² X₂₂² over Haar measure on orthonormal matrices (Collins & Śniady 2006, for O(n)).
            assert_mean(Y[:, 0, 0] ** 2 * Y[:, 1, 1] ** 2, (n + 1) / (n * (n - 1) * (n + 2)), truth_error=1e-12)


@over_charts
@pytest.mark.parametrize(("n", "p"), [(2, 1), (4, 3), (3, 3)])
def test_derivatives(chart, n, p):
    transform = biject_to(CHARTS[chart](n, p))
    z = coordinates(chart, n, p, 2).requires_grad_()
    assert gradcheck(transform, (z,), check_forward_ad=True)
    vectorised = torch.func.vmap(torch.func.grad(lambda v: transform(v).sin().sum()))(z.detach())
    (reverse,) = torch.autograd.grad(transform(z).sin().sum(), z)
    assert torch.allclose(vectorised, reverse)


@over_charts
def test_derivative_is_finite_at_the_image_of_a_matrix(chart):
    """Pyro starts at the pseudo-inverse of a value, and guides at the image of zero."""
    transform = biject_to(CHARTS[chart](5, 2))
    X = Stiefel().random_point(5, 2)
    z = transform.inv(X).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(transform(z)[0, 1], z)
    assert gradient.isfinite().all()
    origin = transform(torch.zeros_like(z))
    assert constraints.stiefel.check(origin)


def test_householder_reflector_is_accurate_next_to_its_axis():
    transform = HouseholderTransform(4, 1)
    for angle in (1e-3, 1e-8, 1e-12, 1e-160):
        X = transform(torch.tensor([1.0, angle, 0.0, 0.0]))
        assert abs(float(X[1, 0]) / angle - 1) < 1e-6
        assert constraints.stiefel.check(X)


@over_charts
def test_both_registries_and_independent_batches(chart):
    constraint = CHARTS[chart](4, 2)
    assert biject_to(constraint) == transform_to(constraint)
    batched = biject_to(constraints.independent(constraint, 1))
    z = coordinates(chart, 4, 2, 3)
    assert batched(z).shape == (3, 4, 2)
    assert batched.log_abs_det_jacobian(z, batched(z)).shape == ()


def test_equality():
    assert PolarTransform() == PolarTransform()
    assert HouseholderTransform(3, 2) != HouseholderTransform(3, 1)
    assert HouseholderTransform(3, 2).with_cache() == HouseholderTransform(3, 2)


def test_constraint_check():
    X = Stiefel().random_point(4, 5, 2)
    assert constraints.stiefel.check(X).tolist() == [True] * 4
    assert not constraints.stiefel.check(X * 1.001).any()
    assert not constraints.stiefel.check(X.mT).any()
    assert constraints.grassmann.check(X).all()
    assert not constraints.grassmann.check(X * 1.001).any()
    assert not constraints.stiefel.check(torch.randn(5)).any()
    assert not constraints.householder_stiefel(4, 2).check(X).any()
    assert repr(constraints.householder_stiefel(5, 2)) == "householder_stiefel(5, 2)"
    with pytest.raises(ValueError, match="n=2, p=3"):
        constraints.householder_stiefel(2, 3)


def test_pyro_constraints_are_here_too():
    assert constraints.positive is torch.distributions.constraints.positive
    assert {"stiefel", "corr_cholesky", "softplus_positive"} <= set(constraints.__all__)
