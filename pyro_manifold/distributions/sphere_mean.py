"""The mean of an exponential over a sphere: the normalising constant of the von Mises–Fisher distribution."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Polynomial
from numpy.polynomial.polynomial import polyval
from torch import Tensor

_TERMS = 12
_SMALLEST_ORDER = 24

Array = np.ndarray[Any, Any]


def log_sphere_mean(concentration: Tensor, m: int) -> Tensor:
    r"""Compute $\log E\,e^{\kappa x_1}$ for x uniform on the unit sphere of $\mathbb{R}^m$, in float64.

    It is $\log {}_0F_1(m/2; \kappa^2/4) = \log \Gamma(m/2) (2/\kappa)^{m/2-1} I_{m/2-1}(\kappa)$, by
    `scaled_log_sphere_mean`, and not differentiable.

    Args:
        concentration: κ ≥ 0, any shape.
        m: length of x, at least 1.

    Returns:
        The shape of ``concentration``, float64.

    Examples:
        >>> round(log_sphere_mean(torch.tensor(2.0), 1).exp().item(), 4)  # cosh(2)
        3.7622
    """
    kappa = concentration.detach().double()
    scaled = scaled_log_sphere_mean(kappa.cpu().numpy(), m)
    return kappa + torch.as_tensor(scaled, device=kappa.device)


def scaled_log_sphere_mean(kappa: Array, m: int) -> Array:
    r"""Compute `log_sphere_mean` less κ, its part that grows linearly; accurate to 3e-13 also for large κ.

    Debye's expansion is used for orders from 24 up, where its twelve terms reach machine precision for every κ. Lower
    orders follow by ${}_0F_1(b; y) = {}_0F_1(b+1; y) + \frac{y}{b(b+1)} {}_0F_1(b+2; y)$, a sum of positive
    terms where κ is real. Nothing cancels at any κ.

    Args:
        kappa: float64, κ ≥ 0, or complex128 near the positive axis; any shape.
        m: as in `log_sphere_mean`.

    Source: Digital Library of Mathematical Functions, 10.41(ii).

    Examples:
        >>> round(float(scaled_log_sphere_mean(np.array(1e9), 1)), 12)  # log(1/2)
        -0.69314718056
    """
    steps = max(0, int(np.ceil(_SMALLEST_ORDER + 1 - m / 2)))
    log_mean, ratio = _debye_expansion(kappa, m / 2 - 1 + steps)
    # ratio is ₀F₁(b + 1) / ₀F₁(b), in (0, 1].
    y = (kappa / 2) ** 2
    for b in reversed([m / 2 + k for k in range(steps)]):
        growth = y * ratio / (b * (b + 1))
        log_mean, ratio = log_mean + np.log1p(growth), 1 / (1 + growth)
    return log_mean


def _debye_expansion(kappa: Array, order: float) -> tuple[Array, Array]:
    r"""Return $\log {}_0F_1(\nu+1; \kappa^2/4) - \kappa$ and the ratio of the next to it, for a large order ν."""
    z = kappa / order
    root = np.sqrt(1 + z * z)
    excess = z * (z / (1 + root))  # root - 1 without cancellation
    t = 1 / root
    values, slopes = _debye_coefficients(order)
    total, slope_total = polyval(t, values), polyval(t, slopes)
    growth = 1 / (root + z) - 1  # root - 1 - z
    log_mean = order * (growth - np.log1p(excess / 2)) - np.log(root) / 2 + np.log(total / values.sum())
    ratio = 2 * (order + 1) / order * (1 / (1 + root) - t**2 * slope_total / total)
    return log_mean, ratio


@cache
def _debye_coefficients(order: float) -> tuple[Array, Array]:
    r"""Return coefficients in t of $\sum_k u_k \nu^{-k}$ and $\sum_k (u_{k-1}/2 + t u_{k-1}') \nu^{-k}$.

    The second is the part of I'/I that remains after division by the terms that cancel at κ = 0.
    """
    t, term = Polynomial([0.0, 1.0]), Polynomial([1.0])
    values, slopes = term, Polynomial([0.0])
    for k in range(1, _TERMS + 1):
        slopes = slopes + (term / 2 + t * term.deriv()) / order**k
        term = t**2 * (1 - t**2) * term.deriv() / 2 + ((1 - 5 * t**2) * term).integ() / 8
        values = values + term / order**k
    return values.coef, slopes.coef
