"""Exact values, from one-dimensional integrals that use nothing of this package."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.special import i0e, i1e


def quadrature(lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Return points and weights ``(200,)`` of Gauss–Legendre quadrature, in float64."""
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(200))
    return lower + (points + 1) * (upper - lower) / 2, weights * (upper - lower) / 2


def langevin_moments(a: float, b: float) -> tuple[float, float, float]:
    r"""Return the log normalising constant and the means of $U_{11}$ and $U_{22}$ of a matrix Langevin distribution.

    The density on V(3,2) is proportional to $e^{aU_{11} + bU_{22}}$. U is the first two columns of a rotation, whose
    entries are quadratic in a unit quaternion, and two angles of the quaternion integrate to Bessel functions (Prentice
    1986, J. R. Stat. Soc. B 48):

    $$ c(a, b) = \int_0^1 I_0(bt) \, I_0(b(1-t)) \, e^{a(2t-1)} \, dt $$

    Examples:
        >>> import math
        >>> log_constant, mean, _ = langevin_moments(3.0, 0.0)  # von Mises–Fisher
        >>> abs(log_constant - math.log(math.sinh(3) / 3)) < 1e-12, abs(mean - (1 / math.tanh(3) - 1 / 3)) < 1e-12
        (True, True)
    """
    first, second = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (a, b))
    t, weights = quadrature(0.0, 1.0)
    log_bessel = (i0e(second * t) * i0e(second * (1 - t))).log() + second.abs()
    log_constant = torch.logsumexp(log_bessel + first * (2 * t - 1) + weights.log(), 0)
    means = torch.autograd.grad(log_constant, [first, second])
    return float(log_constant.detach()), float(means[0]), float(means[1])


def principal_component_moments(data: Tensor, noise: float, prior_scale: float) -> tuple[float, float]:
    r"""Return posterior means of probabilistic PCA in the plane: the scale s, and the squared cosine of the angle θ.

    Rows of y are $N(0, s^2 uu^\top + σ^2 I)$ with a uniform unit vector u, s ~ HalfNormal, and θ is the angle between u
    and the principal axis of the data. With the eigenvalues $l_1 ≥ l_2$ of $y^\top y$, θ has the density
    $e^{κ\cos 2θ}$ given s, where $κ = g(l_1 - l_2)/4$ and $g = s^2/(σ^2(s^2 + σ^2))$. Over θ this integrates to a
    Bessel function, and a quadrature over s remains.

    Args:
        data: y ``(n, 2)``.
        noise: standard deviation σ.
        prior_scale: scale of the prior of s.
    """
    small, large = torch.linalg.eigvalsh(data.T @ data)
    s, weights = quadrature(0.0, 12.0 * prior_scale)
    total = s**2 + noise**2
    gain = s**2 / (noise**2 * total)
    kappa = gain * (large - small) / 4
    log_prior = -((s / prior_scale) ** 2) / 2
    log_likelihood = -len(data) / 2 * total.log() + gain * (large + small) / 4 + kappa + i0e(kappa).log()
    posterior = torch.softmax(log_prior + log_likelihood + weights.log(), 0)
    return float(posterior @ s), float(posterior @ (1 + i1e(kappa) / i0e(kappa))) / 2
