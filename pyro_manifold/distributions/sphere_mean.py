"""The mean of an exponential over a sphere: the normalising constant of the von Mises–Fisher distribution."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

_TERMS = 12
_SMALLEST_ORDER = 24


def log_sphere_mean(concentration: Tensor, m: int) -> Tensor:
    r"""Logarithm of :math:`E\,e^{\kappa x_1}` for x uniform on the unit sphere of :math:`\mathbb{R}^m`, in float64.

    It is :math:`\log {}_0F_1(m/2; \kappa^2/4) = \log \Gamma(m/2) (2/\kappa)^{m/2-1} I_{m/2-1}(\kappa)`; see
    `sphere_mean_and_slope`.

    Args:
        concentration: κ ≥ 0, any shape.
        m: length of x, at least 1.

    Returns:
        The shape of ``concentration``, float64.

    Example:
        >>> round(log_sphere_mean(torch.tensor(2.0), 1).exp().item(), 6)  # cosh(2)
        3.762196
    """
    return sphere_mean_and_slope(concentration, m)[0]


def sphere_mean_and_slope(concentration: Tensor, m: int) -> tuple[Tensor, Tensor]:
    r"""`log_sphere_mean` and its derivative in κ, the mean cosine :math:`I_{m/2}(\kappa) / I_{m/2-1}(\kappa)`.

    Debye's expansion serves orders from 24 up, where its twelve terms reach machine precision for every κ. Lower
    orders follow by :math:`{}_0F_1(b; y) = {}_0F_1(b+1; y) + \frac{y}{b(b+1)} {}_0F_1(b+2; y)`, a sum of positive
    terms. Nothing cancels at any κ, and the work depends on neither κ nor data, so that graphs can be traced.

    Args:
        concentration: κ ≥ 0, any shape.
        m: length of x, at least 1.

    Returns:
        Two tensors of the shape of ``concentration``, float64.

    Source: Digital Library of Mathematical Functions, 10.41(ii).

    Example:
        >>> round(sphere_mean_and_slope(torch.tensor(2.0), 1)[1].item(), 6)  # tanh(2)
        0.964028
    """
    kappa = concentration.double()
    steps = max(0, int(np.ceil(_SMALLEST_ORDER + 1 - m / 2)))
    log_mean, ratio = _debye_expansion(kappa, m / 2 - 1 + steps)
    # ratio is ₀F₁(b + 1) / ₀F₁(b), in (0, 1].
    y = (kappa / 2).square()
    for b in reversed([m / 2 + k for k in range(steps)]):
        growth = y * ratio / (b * (b + 1))
        log_mean, ratio = log_mean + torch.log1p(growth), 1 / (1 + growth)
    return log_mean, kappa * ratio / m


def _debye_expansion(kappa: Tensor, order: float) -> tuple[Tensor, Tensor]:
    r""":math:`\log {}_0F_1(\nu+1; \kappa^2/4)` and the ratio of the next to it, for a large order ν."""
    z = kappa / order
    root = torch.hypot(z, torch.ones_like(z))
    excess = z * (z / (1 + root))  # root - 1 without cancellation
    t = 1 / root
    values, slopes = _debye_coefficients(order)
    total, slope_total = _horner(values, t), _horner(slopes, t)
    at_zero = values.sum()
    log_mean = order * (excess - torch.log1p(excess / 2)) - root.log() / 2 + (total / at_zero).log()
    ratio = 2 * (order + 1) / order * (1 / (1 + root) - t.square() * slope_total / total)
    return log_mean, ratio


def _horner(coefficients: np.ndarray, t: Tensor) -> Tensor:
    total = torch.zeros_like(t)
    for coefficient in coefficients[::-1]:
        total = total * t + float(coefficient)
    return total


@cache
def _debye_coefficients(order: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Coefficients in t of :math:`\sum_k u_k \nu^{-k}` and :math:`\sum_k (u_{k-1}/2 + t u_{k-1}') \nu^{-k}`.

    The second is the part of I' over I that is left when what cancels at κ = 0 is divided out.
    """
    t, term = Polynomial([0.0, 1.0]), Polynomial([1.0])
    values, slopes = term, Polynomial([0.0])
    for k in range(1, _TERMS + 1):
        slopes = slopes + (term / 2 + t * term.deriv()) / order**k
        term = t**2 * (1 - t**2) * term.deriv() / 2 + ((1 - 5 * t**2) * term).integ() / 8
        values = values + term / order**k
    return values.coef, slopes.coef
