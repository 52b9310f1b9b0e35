"""Derivatives of the matrix Langevin normaliser against high precision and differences."""

import mpmath
import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

from problems.importance import haar
from pyro_manifold.distributions import langevin_mean, log_langevin_normaliser
from tests.parameters import long_except

DIGITS = 60


def series_of(n, total, product):
    """0F1 of two columns by its series in vector ones (Koev & Edelman 2006), from d² + e² and d²e²."""
    a, t, xy = mpmath.mpf(n) / 2, total / 4, product / 16
    found, term, k = mpmath.mpf(0), mpmath.mpf(1), 0
    while k < 4 or abs(term) > abs(found) * mpmath.mpf(10) ** -50:
        term = xy**k / (mpmath.rf(a, 2 * k) * mpmath.rf(a - mpmath.mpf(1) / 2, k) * mpmath.factorial(k))
        term *= mpmath.hyp0f1(a + 2 * k, t)
        found, k = found + term, k + 1
    return mpmath.log(found)


def along_a_line(F, E):
    """Value, slope and curvature at h = 0 of the logarithm at F + hE, from 60 digits."""
    n, p = F.shape

    def value(h):
        M = [[mpmath.mpf(float(F[i, j])) + h * mpmath.mpf(float(E[i, j])) for j in range(p)] for i in range(n)]
        gram = [[sum(M[i][j] * M[i][k] for i in range(n)) for k in range(p)] for j in range(p)]
        if p == 1:
            return mpmath.log(mpmath.hyp0f1(mpmath.mpf(n) / 2, gram[0][0] / 4))
        return series_of(n, gram[0][0] + gram[1][1], gram[0][0] * gram[1][1] - gram[0][1] ** 2)

    with mpmath.workdps(DIGITS):
        h = mpmath.mpf(10) ** -12
        down, here, up = value(-h), value(mpmath.mpf(0)), value(h)
        return float(here), float((up - down) / (2 * h)), float((up - 2 * here + down) / h**2)


def rotated(n, *singular_values):
    rng, p = np.random.default_rng(3), len(singular_values)
    left, right = haar(rng, 1, n, p)[0], haar(rng, 1, p, p)[0]
    return torch.as_tensor(left * np.array(singular_values) @ right)


def curvature(F, E):
    """Second derivative of the logarithm at F in the direction E, by the package."""
    return torch.func.jvp(lambda M: (langevin_mean(M) * E).sum(), (F,), (E,))[1]


FEW_COLUMNS = {
    "vector": lambda: rotated(4, 2.0),
    "zero vector": lambda: torch.zeros(3, 1),
    "long vector": lambda: rotated(3, 1e4),
    "two columns": lambda: rotated(3, 3.0, 1.0),
    "equal": lambda: rotated(3, 2.0, 2.0),
    "nearly equal": lambda: rotated(5, 2.0, 2.0 + 1e-7),
    "rank one": lambda: rotated(3, 3.0, 0.0),
    "zero": lambda: torch.zeros(3, 2),
    "square": lambda: rotated(2, 4.0, 1.0),
    "parallel": lambda: torch.tensor([[3.0, 3.0 + 1e-9], [1.0, 1.0], [2.0, 2.0]]),
    "spread": lambda: rotated(3, 150.0, 0.1),
    "concentrated": lambda: rotated(6, 200.0, 100.0),
    "many rows": lambda: rotated(40, 30.0, 7.0),
}


@pytest.mark.parametrize("name", FEW_COLUMNS)
def test_one_and_two_columns_against_high_precision(name):
    F = FEW_COLUMNS[name]()
    for _ in range(2):
        E = torch.randn_like(F)
        value, slope, second = along_a_line(F, E)
        found = log_langevin_normaliser(F)
        found_slope = (langevin_mean(F) * E).sum()
        found_curvature = curvature(F, E)
        assert abs(float(found) - value) <= 1e-12 * max(1.0, value)
        assert abs(float(found_slope) - slope) <= 1e-11 * E.norm()
        assert abs(float(found_curvature) - second) <= 1e-10 * E.norm() ** 2


def test_third_derivatives_of_two_columns():
    F, E = 2 * torch.randn(3, 2), torch.randn(3, 2)
    difference = (curvature(F + 1e-5 * E, E) - curvature(F - 1e-5 * E, E)) / 2e-5
    assert torch.isclose((torch.func.grad(curvature)(F, E) * E).sum(), difference, rtol=1e-6)


MANY_COLUMNS = {
    "three columns": lambda: rotated(5, 3.0, 2.0, 1.0),
    "square": lambda: rotated(3, 3.0, 2.0, 1.0),
    "equal": lambda: rotated(5, 2.0, 2.0, 2.0, 2.0),
    "nearly equal": lambda: rotated(5, 2.0, 2.0 + 1e-6, 2.003),
    "rank one": lambda: rotated(4, 3.0, 0.0, 0.0),
    "zero": lambda: torch.zeros(5, 3),
    "concentrated": lambda: rotated(6, 300.0, 200.0, 1.0),
    "a batch": lambda: torch.randn(2, 4, 3),
}


@pytest.mark.parametrize("name", long_except(MANY_COLUMNS, "three columns", "nearly equal", "zero", "a batch"))
def test_second_derivatives_of_many_columns(name):
    F = MANY_COLUMNS[name]().requires_grad_()
    assert gradgradcheck(log_langevin_normaliser, (F,), check_fwd_over_rev=True, fast_mode=True)


def test_second_derivative_is_the_variance():
    """Variance of tr EᵀX by importance sampling; three columns of ten rows have an error of about 0.001."""
    F = rotated(10, 4.0, 3.0, 2.0)
    E = F / 3 + 0.1 * torch.randn(10, 3)
    X = torch.as_tensor(haar(np.random.default_rng(6), 200_000, 10, 3))
    weights = torch.softmax((X * F).sum((-2, -1)), 0)
    statistic = (X * E).sum((-2, -1))
    deviation = (statistic - (weights * statistic).sum()).square()
    variance = (weights * deviation).sum()
    error = (weights * (deviation - variance)).norm()
    assert abs(curvature(F, E) - variance) < 4 * error + 0.01 * variance


def test_third_derivative_of_many_columns_is_refused():
    F = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_langevin_normaliser(F), F, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), F, create_graph=True)
    with pytest.raises(NotImplementedError, match="no third derivative in F"):
        second.sum().backward()
