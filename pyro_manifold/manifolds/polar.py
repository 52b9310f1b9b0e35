"""The polar factor of a matrix, with a derivative that is finite at repeated singular values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix


def polar_factor(matrix: Tensor) -> Tensor:
    r"""Return the nearest matrix with orthonormal columns, $Q = Z (Z^\top Z)^{-1/2}$.

    The derivative is the closed form for $Z = QP$, with $P$ symmetric,

    $$
    dQ = Q\,\mathcal{L}_P^{-1}(Q^\top dZ - dZ^\top Q) + (I - QQ^\top)\,dZ\,P^{-1},
    \qquad \mathcal{L}_P(K) = KP + PK,
    $$

    which is finite wherever ``Z`` has full column rank. Differentiating the SVD instead gives NaN at
    repeated singular values, and at an orthonormal ``Z`` all of them are 1. The map is the gradient of the
    nuclear norm, so its derivative is symmetric: the same formula serves reverse and forward mode. It may
    be differentiated any number of times and passes through ``torch.func.grad``, ``jvp`` and ``vmap``.

    The factor of a square matrix with a negative determinant is a reflection; `SpecialOrthogonal.projection` returns
    the nearest rotation.

    Args:
        matrix: ``(..., n, p)`` with n ≥ p, real floating point. A matrix with a non-finite entry gives a
            matrix of NaN, and one without full rank some orthonormal matrix (its derivative is not finite).

    Returns:
        Q, ``(..., n, p)``, of the same dtype and device.

    Source: Higham 1986, SIAM Journal on Scientific and Statistical Computing 7, 1160–1174.

    Examples:
        >>> Q = polar_factor(torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.0, 0.0]]))
        >>> torch.allclose(Q, torch.eye(3, 2), atol=1e-6)
        True
    """
    factor: Tensor = _PolarFactor.apply(matrix)
    return factor


def solve_lyapunov(positive: Tensor, right_side: Tensor) -> Tensor:
    r"""Return the solution K of $KP + PK = C$ for a symmetric positive definite P.

    Its own derivative solves the same equation, so it stays finite where eigenvalues of ``P`` coincide.

    Args:
        positive: ``P``, ``(..., p, p)``.
        right_side: ``C``, ``(..., p, p)``.

    Returns:
        ``K``, ``(..., p, p)``.

    Examples:
        >>> solve_lyapunov(torch.eye(2), torch.tensor([[2.0, 4.0], [4.0, 2.0]])).round(decimals=4).tolist()
        [[1.0, 2.0], [2.0, 1.0]]
    """
    solution: Tensor = _LyapunovSolution.apply(positive, right_side)
    return solution


def finite_or_zero(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Replace matrices with a non-finite entry by zero, since LAPACK raises an error for them and divergences must not.

    Returns:
        The matrices, and a factor for results computed from them: 1, or NaN where a matrix was replaced.
    """
    finite = matrix.sum((-2, -1), keepdim=True).isfinite()  # cheapest reduction that non-finite entries spoil
    return torch.where(finite, matrix, 0.0), torch.where(finite, 1.0, torch.nan).to(matrix.dtype)


class _PolarFactor(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        safe, mark = finite_or_zero(matrix)
        # The polar factor of QR is Q times that of the small R; LAPACK's own SVD of a tall matrix begins in the same
        # way and then spends more on its left singular vectors.
        orthonormal, triangle = torch.linalg.qr(safe)
        left, _, right = torch.linalg.svd(triangle)
        return orthonormal @ (left @ (right * mark))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        matrix, factor = ctx.saved_tensors
        return _polar_derivative(matrix, factor, cotangent)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        matrix, factor = ctx.saved_tensors
        return _polar_derivative(matrix, factor, tangent)


def _polar_derivative(matrix: Tensor, factor: Tensor, direction: Tensor) -> Tensor:
    positive = factor.mT @ matrix
    positive = (positive + positive.mT) / 2
    inner = factor.mT @ direction
    # For a singular P inv_ex returns inf or NaN, which a sampler counts as a divergence; inv would raise.
    inverse = by_matrix(torch.linalg.inv_ex, positive)[0]
    # The second summand of the formula expanded: two products with tall matrices instead of three and a solve.
    return direction @ inverse + factor @ (solve_lyapunov(positive, inner - inner.mT) - inner @ inverse)


class _LyapunovSolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(positive: Tensor, right_side: Tensor) -> Tensor:
        safe, mark = finite_or_zero(positive)
        eigenvalues, basis = torch.linalg.eigh(safe)
        sums = eigenvalues.unsqueeze(-1) + eigenvalues.unsqueeze(-2)
        return basis @ ((basis.mT @ right_side @ basis) / sums) @ basis.mT * mark

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        positive, solution = ctx.saved_tensors
        adjoint = solve_lyapunov(positive, cotangent)
        return -(adjoint @ solution.mT + solution.mT @ adjoint), adjoint

    @staticmethod
    def jvp(ctx: Any, positive_tangent: Tensor | None, right_tangent: Tensor | None) -> Tensor:
        positive, solution = ctx.saved_tensors
        change = torch.zeros_like(solution) if right_tangent is None else right_tangent
        if positive_tangent is not None:
            change = change - solution @ positive_tangent - positive_tangent @ solution
        return solve_lyapunov(positive, change)
