r"""The matrix Langevin normalising constant, :math:`{}_0F_1(n/2; F^\top F/4) = E\,e^{\operatorname{tr} F^\top X}`."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.distributions.sphere_mean import sphere_mean_and_slope

_NODES = 96
_LAST_NODE = 5.5
_NO_SECOND_DERIVATIVE = (
    "MatrixLangevin: the normaliser has no second derivative in F: use a method that needs first derivatives only."
)


def log_langevin_normaliser(concentration: Tensor) -> Tensor:
    r"""Log normalising constant of `MatrixLangevin`, :math:`\log E\,e^{\operatorname{tr} F^\top X}` for uniform X.

    X is uniform on the n×p matrices with orthonormal columns, and the mean is :math:`{}_0F_1(n/2; F^\top F/4)`. With
    the singular values :math:`d_i` of F its logarithm is taken to be

    .. math::
        \sum_i s(d_i) + \sum_{i<j} c(d_i, d_j) + \sum_{k=3}^p a_k e_k(q_1, \dots, q_p),
        \qquad q_i = 1 - \big(1 + 4 d_i^2 / (n-1)^2\big)^{-1/2}.

    s is the logarithm for one column, s + s + c that for two: a Bessel function and a one-dimensional integral, both to
    about 1e-13 relative for any n and F. **p ≤ 2 is exact.** For p ≥ 3 the last sum is what the
    volumes of k columns say beyond those of fewer, e_k an elementary symmetric polynomial and :math:`a_k` the
    (k-1)-th difference of :math:`\log\Gamma((n-j)/2)` at j = 0. It vanishes with any of k singular values and has
    the right limit when any number of them are large; in between it follows the second-order saddlepoint
    approximation of Kume, Preston and Wood, whose three-column part is exactly :math:`\frac1{2n} e_3(q)`, with n for
    n - 1 in q.

    Largest errors found of the logarithm, over singular values between 0.5 and 1000, equal and spread; they are
    largest where singular values are near 2n and small at both ends:

    ======  =====  =====  =====  =====  ======
    p       n = p  p + 1  p + 2  2p     3p
    ======  =====  =====  =====  =====  ======
    3       0.05   0.02   0.01   0.005  0.001
    4       0.17   0.06   0.04   0.02   0.01
    5       0.33   0.15   0.10   0.05   0.02
    8       1.3    0.75   0.55   0.2    0.1
    ======  =====  =====  =====  =====  ======

    They count once for each matrix observed: with many matrices of p ≥ 3 columns and n close to p, the posterior of F
    is that of a slightly different distribution.

    Args:
        concentration: F, ``(..., n, p)`` with n ≥ p.

    Returns:
        ``(...)``, dtype of F; computed in float64.

    Example:
        >>> F = torch.eye(3, 2, requires_grad=True)
        >>> value = log_langevin_normaliser(F)
        >>> round(value.item(), 4)
        0.3275
        >>> bool(torch.allclose(torch.autograd.grad(value, F)[0], langevin_mean(F)))
        True
    """
    value: Tensor = _LogNormaliser.apply(concentration)[0]
    return value


def langevin_mean(concentration: Tensor) -> Tensor:
    r"""Mean of the matrix Langevin distribution, :math:`\partial \log {}_0F_1 / \partial F`, of the shape of F.

    Example:
        >>> langevin_mean(torch.tensor([[1e9], [0.0]])).tolist()
        [[1.0], [0.0]]
    """
    with torch.no_grad():
        mean: Tensor = _LogNormaliser.apply(concentration)[1]
    return mean


class _LogNormaliser(torch.autograd.Function):
    """Value and gradient in F, by singular values: a spectral function needs no derivative of the SVD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(concentration: Tensor) -> tuple[Tensor, Tensor]:
        matrix = concentration.double()
        finite = torch.isfinite(matrix).all(-1, keepdim=True).all(-2, keepdim=True)
        # LAPACK raises on a matrix with NaN; a sampler wants NaN back and calls it a divergence.
        left, singular, right = torch.linalg.svd(torch.where(finite, matrix, 0.0), full_matrices=False)
        value, slope = log_normaliser_and_slope(singular, matrix.shape[-2])
        value = torch.where(finite[..., 0, 0], value, torch.nan)
        mean = torch.where(finite, (left * slope.unsqueeze(-2)) @ right, torch.nan)
        return value.to(concentration.dtype), mean.to(concentration.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> Tensor:
        concentration, mean = ctx.saved_tensors
        return cotangent[..., None, None] * _FirstDerivative.apply(concentration, mean)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        concentration, mean = ctx.saved_tensors
        return (_FirstDerivative.apply(concentration, mean) * tangent).sum((-2, -1)), None


class _FirstDerivative(torch.autograd.Function):
    """The mean as it is; without this a second derivative in F would be zero and nobody would know."""

    generate_vmap_rule = True

    @staticmethod
    def forward(concentration: Tensor, mean: Tensor) -> Tensor:
        return mean.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        raise NotImplementedError(_NO_SECOND_DERIVATIVE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise NotImplementedError(_NO_SECOND_DERIVATIVE)


def log_normaliser_and_slope(singular: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The logarithm of 0F1 and its derivatives in the singular values, ``(..., p)`` in float64."""
    p = singular.shape[-1]
    values, slopes = sphere_mean_and_slope(singular, n)
    first, second = torch.triu_indices(p, p, 1, device=singular.device)
    pair_value, *pair_slopes = _two_columns(singular[..., first], singular[..., second], n)
    value = values.sum(-1) * (2 - p) + pair_value.sum(-1)
    slope = slopes * (2 - p)
    for index, pair_slope in zip((first, second), pair_slopes, strict=True):
        slope = slope.index_add(-1, index, pair_slope)
    if p > 2:
        many_value, many_slope = _many_columns(singular, n)
        value, slope = value + many_value, slope + many_slope
    return value, slope


def _two_columns(d: Tensor, e: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`\log {}_0F_1(n/2; \operatorname{diag}(d, e)^2/4)` and its derivatives.

    Given the second row of the first column, :math:`x_2 = \tanh u`, both columns are von Mises–Fisher on n - 1
    dimensions, and r = sech u is what their concentrations shrink by:

    .. math::
        {}_0F_1 = E\,S(d\,r)\,S(e\,r), \qquad S(\kappa) = {}_0F_1(\tfrac{n-1}2; \kappa^2/4),
        \qquad p(u) \propto (\operatorname{sech} u)^{n-1}.

    The integrand is positive, even and analytic: the trapezoidal rule in v, u = w sinh v, converges faster than any
    power, with w the width at the mode.
    """
    v = torch.linspace(0, _LAST_NODE, _NODES, dtype=d.dtype, device=d.device)
    width = (n - 1 + d + e).rsqrt().unsqueeze(-1)
    u = width * v.sinh()
    # log cosh u, without overflow or cancellation
    log_cosh = u + torch.log1p(torch.expm1(-2 * u) / 2)
    shrunk = torch.exp(-log_cosh)
    (log_d, slope_d), (log_e, slope_e) = (sphere_mean_and_slope(k.unsqueeze(-1) * shrunk, n - 1) for k in (d, e))
    log_weight = width.log() + v.cosh().log() + math.log(2 * _LAST_NODE / (_NODES - 1))
    log_weight = log_weight - torch.where(v == 0, math.log(2), 0.0)
    log_terms = log_weight - (n - 1) * log_cosh + log_d + log_e
    log_volume = 0.5 * math.log(math.pi) + math.lgamma((n - 1) / 2) - math.lgamma(n / 2)
    weights = torch.softmax(log_terms, -1) * shrunk
    value = torch.logsumexp(log_terms, -1) - log_volume
    return value, (weights * slope_d).sum(-1), (weights * slope_e).sum(-1)


def _many_columns(singular: Tensor, n: int) -> tuple[Tensor, Tensor]:
    r""":math:`\sum_{k \ge 3} a_k e_k(q)` and its derivatives, e the elementary symmetric polynomials."""
    p, scale = singular.shape[-1], (n - 1) / 2
    root = torch.hypot(singular, torch.full_like(singular, scale))
    q = (singular / root) * (singular / (root + scale))
    q_slope = scale * singular / root**3
    value, slopes = torch.zeros_like(q[..., 0]), torch.zeros_like(q)
    # Row i has the polynomials in all q but the i-th, the last row those in all: none is divided out.
    others = torch.where(torch.eye(p + 1, p, dtype=torch.bool, device=q.device), 0.0, q.unsqueeze(-2))
    symmetric = [torch.ones_like(others[..., 0])] + [torch.zeros_like(others[..., 0])] * p
    for i in range(p):
        symmetric = [symmetric[0], *(e + others[..., i] * lower for lower, e in pairwise(symmetric))]
    for k, coefficient in enumerate(_interplay(n, p), start=3):
        value = value + coefficient * symmetric[k][..., p]
        slopes = slopes + coefficient * symmetric[k - 1][..., :p]
    return value, slopes * q_slope


@cache
def _interplay(n: int, p: int) -> list[float]:
    r""":math:`a_k = \Delta^{k-1}_j \log\Gamma\big(\tfrac{n-j}2\big)\big|_{j=0}`, k = 3, ..., p: what the volumes of
    k columns say beyond those of fewer.

    Differences of logarithms would cancel. By Malmsten's formula they are integrals of positive functions,
    :math:`\int_0^\infty e^{-(n-k+1)t/2} (1 - e^{-t/2})^{k-1} / (t (1 - e^{-t}))\, dt`.
    """
    log_t = np.linspace(-40.0, 6.0, 4000)
    t = np.exp(log_t)
    shared = (log_t[1] - log_t[0]) / -np.expm1(-t)
    return [
        float((shared * np.exp(-(n - k + 1) * t / 2) * (-np.expm1(-t / 2)) ** (k - 1)).sum()) for k in range(3, p + 1)
    ]
