"""The special functions of the table: arguments of each, and what they are by mpmath."""

import math

import mpmath
import numpy as np
import torch

from pyro_manifold.compiled.native import special

OF_ONE = sorted(name for name, template in special.ELEMENTWISE.items() if "{1}" not in template)
OF_TWO = sorted(name for name, template in special.ELEMENTWISE.items() if "{1}" in template and "{2}" not in template)


def in_torch(name):
    """The function that torch calls by a name of the table."""
    return getattr(torch, name, None) or getattr(torch.special, name.removeprefix("special_"))


def _between(low, high, count=25):
    return np.random.default_rng(0).uniform(low, high, count)


def _of_all_sizes(low=-12, high=3, count=25):
    """Return numbers of all magnitudes and both signs."""
    random = np.random.default_rng(1)
    return random.choice([-1, 1], count) * 10 ** random.uniform(low, high, count)


def _near_poles():
    """Return numbers near poles of the gamma function."""
    poles = -np.arange(12.0)
    return np.concatenate([poles + 1e-7, poles - 1e-10, poles + 0.3])


def _bessel(order, scaled):
    def value(x):
        result = mpmath.besseli(order, x)
        return result * mpmath.exp(-abs(x)) if scaled else result

    return value


def _scaled_erfc(x):
    if x > 1e20:
        return 1 / (x * mpmath.sqrt(mpmath.pi))
    return mpmath.exp(x * x) * mpmath.erfc(x)


def _log_of_normal(x):
    return mpmath.log(mpmath.ncdf(x)) if x < 5 else mpmath.log1p(-mpmath.ncdf(-x))


def _normal_quantile(p):
    """Compute quantiles by Newton's method on the smaller of the two tails, exact in mpmath."""
    tail = min(p, 1 - p)
    y = -mpmath.sqrt(-2 * mpmath.log(tail))
    for _ in range(60):
        y -= (mpmath.log(mpmath.ncdf(y)) - mpmath.log(tail)) * mpmath.ncdf(y) / mpmath.npdf(y)
    return y if p < 0.5 else -y


def polygamma(order):
    """Compute polygamma, by reflection where the argument is negative, which mpmath does not use."""

    def value(x):
        if x > 0:
            return mpmath.polygamma(order, x)
        with mpmath.workdps(60):
            slope = mpmath.diff(lambda t: mpmath.cot(mpmath.pi * t), x, order) * mpmath.pi
            return (-1) ** order * mpmath.polygamma(order, 1 - x) - slope

    return value


_LARGE = np.array([30.0, -700.0, 700.0, 1e-300])
EXACT = {
    "digamma": (mpmath.digamma, [_between(-20, 20), _of_all_sizes(), _near_poles()]),
    "erfinv": (mpmath.erfinv, [_between(-1, 1), _of_all_sizes(-12, 0), 1 - abs(_of_all_sizes(-15, -1))]),
    "i0": (_bessel(0, False), [_between(-20, 20), _LARGE]),
    "lgamma": (lambda x: mpmath.log(abs(mpmath.gamma(x))), [_between(-20, 20), _near_poles()]),
    "sinc": (lambda x: mpmath.sinpi(x) / (mpmath.pi * x), [_between(-3, 3), _of_all_sizes(-300, -2)]),
    "special_entr": (lambda x: -x * mpmath.log(x), [abs(_of_all_sizes(-300, 300))]),
    "special_erfcx": (
        _scaled_erfc,
        [_between(-26, 9), _between(9, 11), _of_all_sizes(), np.array([1e150, 1e300])],
    ),
    "special_i0e": (_bessel(0, True), [_between(-20, 20), _LARGE]),
    "special_i1": (_bessel(1, False), [_between(-20, 20), _LARGE]),
    "special_i1e": (_bessel(1, True), [_between(-20, 20), _LARGE]),
    "special_log_ndtr": (_log_of_normal, [_between(-37, 8), np.array([-1e3, -1e10, 1.0])]),
    "special_ndtri": (
        _normal_quantile,
        [_between(0, 1), 0.5 + _of_all_sizes(-9, -1), abs(_of_all_sizes(-320, -1)), 1 - abs(_of_all_sizes(-15, -1))],
    ),
}
"""Functions with a value to the last digits, and arguments in all of their domain where it is finite."""


def exactly(function, arguments):
    """The values to all digits of float64."""
    with mpmath.workdps(50):
        return torch.tensor([float(function(mpmath.mpf(float(x)))) for x in arguments], dtype=torch.float64)


EDGES = (0.0, -0.0, 1.0, -1.0, -2.0, 0.5, -0.5, 2.0, math.inf, -math.inf, math.nan, 800.0, -800.0, 1e-300, -1e-300)
"""Poles, ends of domains, overflow, and what is no number."""
