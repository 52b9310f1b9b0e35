r"""The matrix Langevin normaliser of two columns as a closed form and a table, one for each number of rows n.

With F of singular values d, e let $t = (d^2 + e^2)/c^2$, $\delta = (de)^2/c^4$ and c = n/2 + 2. The
logarithm of the normaliser is a smooth function of these two, also where d = e and where one vanishes. It is

$$
c\,(s - 2) - \tfrac{n-2}{2} \log\tfrac{1 + s + q}{4} - \tfrac12 \log\tfrac s2 + R(w, r), \qquad
q = \sqrt{1 + t + \delta}, \quad s = \sqrt{2 + t + 2q}.
$$

The closed form, s the sum and q the product of $\sqrt{1 + d^2/c^2}$ and $\sqrt{1 + e^2/c^2}$, has all
unbounded terms, in either singular value, both, or n. The remainder R is bounded and analytic in

$$ w = (1 + 4k)^{-1/2}, \qquad r = \big((1 + 4k)/(1 + t)\big)^{1/2}, \qquad k = \delta / (1 + t), $$

which fill the unit square: w falls from 1 to 0 as the smaller singular value grows, r from 1 to 0 as the larger grows
beyond it. Hence products of a few Chebyshev polynomials represent R to rounding errors, and derivatives of every order
have other coefficients of the same products.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev

from pyro_manifold.distributions.sphere_mean import Array, scaled_log_sphere_mean

_TERMS = (48, 32)  # in w and in r: enough for the coefficients to reach rounding errors, for every n ≥ 2

_NODES = 96
_LAST_NODE = 5.5


def scale(n: int) -> float:
    """Return c: large enough that no zero of the normaliser is near, and for large n the scale of the saddlepoint."""
    return n / 2 + 2


@cache
def coefficients(n: int, order: int) -> Array:
    r"""Return Chebyshev coefficients of R or of its derivatives, ``(order + 1, terms in r, terms in w)``.

    Row j has $\partial_u^{order-j} \partial_v^j R$ for u = 2w - 1, v = 2r - 1 in [-1, 1]. There are no more terms
    in r than in w, and a derivative is padded to the number of R itself.

    NumPy arrays, because a cache must not keep the tensors of a trace or of a transform.

    Args:
        n: rows, at least 2.
        order: order of the derivatives.

    Examples:
        >>> coefficients(3, 1).shape
        (2, 32, 48)
    """
    if not order:
        return _fit(n)[None]
    lower = coefficients(n, order - 1)
    by_first = [np.pad(chebyshev.chebder(row, axis=1), [(0, 0), (0, 1)]) for row in lower]
    return np.stack([*by_first, np.pad(chebyshev.chebder(lower[-1]), [(0, 1), (0, 0)])])


def _fit(n: int) -> Array:
    angles = [(np.arange(count) + 0.5) * np.pi / count for count in _TERMS]
    w, r = np.meshgrid(*[(1 + np.cos(angle)) / 2 for angle in angles])
    first, second = (np.cos(np.outer(np.arange(len(angle)), angle)) * 2 / len(angle) for angle in angles)
    found = second @ _remainder(w, r, n) @ first.T
    found[0] /= 2
    found[:, 0] /= 2
    # Rounding errors of the highest terms would dominate derivatives.
    found[np.abs(found) < (16 + n / 2) * np.finfo(float).eps] = 0.0
    rows, columns = (1 + int(index.max()) for index in found.nonzero())
    return found[:rows, : max(rows, columns)]


def _remainder(w: Array, r: Array, n: int) -> Array:
    """Compute R from the quadrature less the closed form, both less d + e; d and e may be complex conjugates."""
    k = (w**-2 - 1) / 4
    one_more = (w * r) ** -2  # 1 + t
    t, root = one_more - 1, np.sqrt(k * one_more)
    total = np.sqrt(t + 2 * root)
    d = (total + np.sqrt((t - 2 * root).astype(complex))) / 2
    e = root / d
    q = np.sqrt(one_more + root**2)
    q_less = (t + root**2) / (1 + q)  # q - 1
    s = np.sqrt(2 + t + 2 * q)
    s_less = (t + 2 * q_less) / (2 + s)  # s - 2
    growth = (2 + 2 * one_more / (q + root)) / (s + total) - 2  # s - 2 - total
    closed = scale(n) * growth - (n - 2) / 2 * np.log1p((s_less + q_less) / 4) - np.log1p(s_less / 2) / 2
    return scaled_log_two_columns(scale(n) * d, scale(n) * e, n) - closed


def scaled_log_two_columns(d: Array, e: Array, n: int) -> Array:
    r"""Compute $\log {}_0F_1(n/2; \operatorname{diag}(d, e)^2/4) - d - e$.

    Given the second row of the first column, $x_2 = \tanh u$, both columns are von Mises–Fisher on n - 1
    dimensions, with concentrations that are smaller by the factor r = sech u:

    $$
    {}_0F_1 = E\,S(d\,r)\,S(e\,r), \qquad S(\kappa) = {}_0F_1(\tfrac{n-1}2; \kappa^2/4),
    \qquad p(u) \propto (\operatorname{sech} u)^{n-1}.
    $$

    The integrand is positive, even and analytic: the trapezoidal rule in v, u = w sinh v, converges faster than any
    power, with w the width at the mode.

    Args:
        d: complex128, any shape.
        e: as d; both are real and not negative, or complex conjugates near the positive axis.
        n: rows, at least 2.

    Returns:
        float64.

    Examples:
        >>> zero = np.zeros((), complex)
        >>> bool(abs(scaled_log_two_columns(zero, zero, 3)) < 1e-14)
        True
    """
    v = np.linspace(0, _LAST_NODE, _NODES)
    total = np.real(d + e)[..., None]
    width = 1 / np.sqrt(n - 1 + total)
    u = width * np.sinh(v)
    # log cosh u, without overflow or cancellation
    log_cosh = u + np.log1p(np.expm1(-2 * u) / 2)
    shrunk = np.exp(-log_cosh)
    log_weight = np.log(width) + np.log(np.cosh(v)) + math.log(2 * _LAST_NODE / (_NODES - 1))
    log_weight = log_weight - np.where(v == 0, math.log(2), 0.0)
    log_terms = log_weight - (n - 1) * log_cosh - total * np.tanh(u) * np.tanh(u / 2)  # 1 - sech u
    log_terms = log_terms + sum(scaled_log_sphere_mean(x[..., None] * shrunk, n - 1) for x in (d, e))
    largest = log_terms.real.max(-1, keepdims=True)
    log_volume = 0.5 * math.log(math.pi) + math.lgamma((n - 1) / 2) - math.lgamma(n / 2)
    found: Array = np.log(np.exp(log_terms - largest).sum(-1)).real + largest[..., 0] - log_volume
    return found
