r"""The von Mises–Fisher normalising constant as a closed form and a series, with derivatives of every order."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from pyro_manifold.distributions.sphere_mean import Array, scaled_log_sphere_mean

_NODES = 64


def scaled_log_normaliser(concentration: Tensor, n: int) -> Tensor:
    r"""Compute $\log {}_0F_1(n/2; \kappa^2/4) - \kappa$, the log normaliser of `VonMisesFisher` less its linear part.

    With $c = n/2 + 2$, $z = \kappa/c$ and $q = \sqrt{1 + z^2}$ it is

    $$ c\,(q - 1 - z) - \tfrac{n-1}{2} \log\tfrac{1 + q}{2} + R(1/q), $$

    where the closed form has all terms that are unbounded in κ or n, and R is analytic on [0, 1]: a few Chebyshev
    polynomials represent it to rounding errors. All operations are elementwise, so autograd gives derivatives of every
    order, and native code covers them.

    Args:
        concentration: κ ≥ 0, any shape.
        n: length of the unit vectors, at least 2.

    Returns:
        The shape and dtype of ``concentration``; computed in float64.

    Source: the form of the closed part follows Debye's expansion, Digital Library of Mathematical Functions, 10.41(ii).

    Examples:
        >>> value = scaled_log_normaliser(torch.tensor(2.0), 3) + 2.0
        >>> round(value.exp().item(), 4)  # sinh(2) / 2
        1.8134
    """
    kappa = concentration.double()
    c = n / 2 + 2
    z = kappa / c
    q = (1 + z.square()).sqrt()
    return (c * (1 / (q + z) - 1) + _bounded(z.square(), q, n)).to(concentration.dtype)


def mean_resultant_length(concentration: Tensor, n: int) -> Tensor:
    r"""Compute $A_n(\kappa) = I_{n/2}(\kappa)/I_{n/2-1}(\kappa)$, the length of the mean of `VonMisesFisher`.

    It is $2\kappa$ times the derivative of the logarithm of the constant in κ², accurate also where it is small.

    Examples:
        >>> mean_resultant_length(torch.tensor([0.0, 1e9]), 3).tolist()
        [0.0, 1.0]
    """
    c = n / 2 + 2

    def log_normaliser(square: Tensor) -> Tensor:
        q = (1 + square).sqrt()
        return (c * square / (1 + q) + _bounded(square, q, n)).sum()

    z = concentration.double() / c
    length = 2 * z / c * torch.func.grad(log_normaliser)(z.square())
    return length.to(concentration.dtype)


def length_deficit(concentration: Tensor, n: int) -> Tensor:
    r"""Compute $1 - A_n(\kappa)$, also accurate where it is small."""
    deficit: Tensor = -torch.func.grad(lambda kappa: scaled_log_normaliser(kappa, n).sum())(concentration)
    return deficit


def _bounded(square: Tensor, q: Tensor, n: int) -> Tensor:
    """Compute the terms of the formula after the first, with z² = ``square``."""
    return _series(2 / q - 1, _coefficients(n)) - (n - 1) / 2 * torch.log1p(square / (2 * (1 + q)))


def _series(x: Tensor, coefficients: Array) -> Tensor:
    """Evaluate a Chebyshev series by Clenshaw's recurrence."""
    after = torch.zeros_like(x)
    value = after + float(coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        value, after = 2 * x * value - after + float(coefficient), value
    return x * value - after + float(coefficients[0])


@cache
def _coefficients(n: int) -> Array:
    """Return Chebyshev coefficients of R in 2/q - 1, from interpolation of the numerical remainder."""
    x = chebyshev.chebpts1(_NODES)
    r = (1 + x) / 2
    z = np.sqrt((1 - r) * (1 + r)) / r
    c, q = n / 2 + 2, 1 / r
    closed = c * (1 / (q + z) - 1) - (n - 1) / 2 * np.log1p(z**2 / (2 * (1 + q)))
    found: Array = chebyshev.chebfit(x, scaled_log_sphere_mean(c * z, n) - closed, _NODES - 1)
    # Rounding errors of the highest terms would dominate derivatives.
    last = int(np.flatnonzero(np.abs(found) > (16 + n / 2) * np.finfo(float).eps).max(initial=1))
    return found[: last + 1]
