"""The matrix Langevin normaliser of three or more columns: a function of singular values, and its derivatives in F."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.distributions.langevin_columns import log_two_columns

_NEAR = 1e-4
_NO_THIRD_DERIVATIVE = (
    "MatrixLangevin: the normaliser of three or more columns has no third derivative in F: "
    "use a method that needs two derivatives only."
)


def log_many_columns(matrix: Tensor) -> Tensor:
    """Compute `log_langevin_normaliser` of ``(..., n, p)`` in float64, p ≥ 3; NaN where an entry is not finite.

    Examples:
        >>> log_many_columns(torch.zeros(4, 3, dtype=torch.float64)).abs() < 1e-14
        tensor(True)
    """
    value: Tensor = _Normaliser.apply(matrix)[0]
    return value


class _Normaliser(torch.autograd.Function):
    """Value and gradient in F, by singular values: a spectral function needs no derivative of the SVD."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor]:
        left, singular, right, mark = _decomposed(matrix)
        slopes, value = torch.func.grad(_summed(matrix.shape[-2]), has_aux=True)(singular.square())
        mean = (left * (2 * singular * slopes).unsqueeze(-2)) @ right
        return value * mark[..., 0, 0], mean * mark

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> Tensor:
        return cotangent[..., None, None] * _Mean.apply(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        return (_Mean.apply(*ctx.saved_tensors) * tangent).sum((-2, -1)), None


class _Mean(torch.autograd.Function):
    """Gradient that was computed with the value, as a function with its own derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, mean: Tensor) -> Tensor:
        return mean.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _Curvature.apply(*ctx.saved_tensors, cotangent), None  # second derivatives are symmetric

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: object) -> Tensor:
        return _Curvature.apply(*ctx.saved_tensors, tangent)


class _Curvature(torch.autograd.Function):
    r"""The derivative of the mean in a direction E.

    With $F^\top F = V \operatorname{diag}(x) V^\top$ the mean is $F M$,
    $M = 2 V \operatorname{diag}(g'(x)) V^\top$, and by the formula of Daleckii and Krein

    $$
    d(FM) = E M + F V K V^\top, \qquad K_{ii} = 2 \sum_j g''_{ij} H_{jj}, \qquad
    K_{ij} = 2 \frac{g'_i - g'_j}{x_i - x_j} H_{ij}, \qquad H = V^\top (E^\top F + F^\top E) V.
    $$
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, direction: Tensor) -> Tensor:
        left, singular, right, mark = _decomposed(matrix)
        slopes, hessian, quotients = _second_order(_summed(matrix.shape[-2]), singular.square())
        moved, here = direction @ right.mT, left * singular.unsqueeze(-2)
        change = moved.mT @ here
        change = change + change.mT
        diagonal = (hessian @ change.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).squeeze(-1)
        inner = quotients * change + torch.diag_embed(diagonal)
        return 2 * (moved * slopes.unsqueeze(-2) + here @ inner) @ right * mark

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor]:
        if ctx.needs_input_grad[0]:
            raise NotImplementedError(_NO_THIRD_DERIVATIVE)
        return None, _Curvature.apply(*ctx.saved_tensors, cotangent)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        raise NotImplementedError(_NO_THIRD_DERIVATIVE)


Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the SVD, and a factor for results computed from it: 1, or NaN for a matrix with a non-finite entry."""
    finite = torch.isfinite(matrix).all(-1, keepdim=True).all(-2, keepdim=True)
    # LAPACK raises an error for such a matrix; a sampler needs NaN, which it counts as a divergence.
    left, singular, right = torch.linalg.svd(torch.where(finite, matrix, 0.0), full_matrices=False)
    return left, singular, right, torch.where(finite, 1.0, torch.nan).to(matrix)


def _second_order(function: Slopes, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return first and second derivatives in x ``(..., p)``, and divided differences of the first, diagonal zero."""
    gradient = torch.func.grad(function, has_aux=True)

    def slope(point: Tensor) -> Tensor:
        return gradient(point)[0]

    def derivative(point: Tensor, direction: Tensor) -> Tensor:
        # Reverse mode twice: forward mode could not be nested in the forward mode of a caller.
        return torch.func.grad(lambda y: (slope(y) * direction).sum())(point)

    p = x.shape[-1]
    units = torch.eye(p, dtype=x.dtype, device=x.device)
    slopes = slope(x)
    hessian = torch.stack([derivative(x, unit) for unit in units], -1)
    gaps, sums = x.unsqueeze(-1) - x.unsqueeze(-2), x.unsqueeze(-1) + x.unsqueeze(-2)
    near = gaps.abs() <= _NEAR * (sums + 1)
    # Of nearly equal values the derivative half-way: by symmetry half the curvature along their difference.
    pairs = (units.unsqueeze(1) + units.unsqueeze(0)).clamp(max=1)
    between = torch.where(pairs > 0, sums.unsqueeze(-1) / 2, x.unsqueeze(-2).unsqueeze(-2))
    along = units.unsqueeze(1) - units.unsqueeze(0)
    limits = (derivative(between, along) * along).sum(-1) / 2
    quotients = (slopes.unsqueeze(-1) - slopes.unsqueeze(-2)) / torch.where(near, 1.0, gaps)
    return slopes, hessian, torch.where(near, limits, quotients) * (1 - units)


def _summed(n: int) -> Slopes:
    def function(squares: Tensor) -> tuple[Tensor, Tensor]:
        value = _log_of_squares(squares, n)
        return value.sum(), value

    return function


def _log_of_squares(squares: Tensor, n: int) -> Tensor:
    """Evaluate the formula of `log_langevin_normaliser` at the squared singular values ``(..., p)``."""
    p = squares.shape[-1]
    first, second = torch.triu_indices(p, p, 1, device=squares.device)
    d, e = squares[..., first], squares[..., second]
    # Single columns follow the pairs, as pairs with zero.
    totals, products = torch.cat([d + e, squares], -1), torch.cat([d * e, torch.zeros_like(squares)], -1)
    logarithms = log_two_columns(totals, products, n)
    pairs, singles = logarithms[..., :-p].sum(-1), logarithms[..., -p:].sum(-1)
    return pairs - (p - 2) * singles + _beyond_pairs(squares, n)


def _beyond_pairs(squares: Tensor, n: int) -> Tensor:
    r"""Compute $\sum_{k \ge 3} a_k e_k(q)$, e the elementary symmetric polynomials."""
    p = squares.shape[-1]
    ratio = squares * (2 / (n - 1)) ** 2
    root = (1 + ratio).sqrt()
    q = ratio / (root * (1 + root))
    symmetric = [torch.ones_like(q[..., 0])] + [torch.zeros_like(q[..., 0])] * p
    for i in range(p):
        symmetric = [symmetric[0], *(e + q[..., i] * lower for lower, e in pairwise(symmetric))]
    value = torch.zeros_like(q[..., 0])
    for k, coefficient in enumerate(_volume_coefficients(n, p), start=3):
        value = value + coefficient * symmetric[k]
    return value


@cache
def _volume_coefficients(n: int, p: int) -> list[float]:
    r"""Compute the coefficients $a_k$ of `log_langevin_normaliser`, k = 3, ..., p.

    $$ a_k = \Delta^{k-1}_j \log\Gamma\big(\tfrac{n-j}2\big)\big|_{j=0} $$

    Differences of logarithms would cancel. By Malmsten's formula they are integrals of positive functions,
    $\int_0^\infty e^{-(n-k+1)t/2} (1 - e^{-t/2})^{k-1} / (t (1 - e^{-t}))\, dt$.
    """
    log_t = np.linspace(-40.0, 6.0, 4000)
    t = np.exp(log_t)
    shared = (log_t[1] - log_t[0]) / -np.expm1(-t)
    return [
        float((shared * np.exp(-(n - k + 1) * t / 2) * (-np.expm1(-t / 2)) ** (k - 1)).sum()) for k in range(3, p + 1)
    ]
