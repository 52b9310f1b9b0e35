"""Functionals of products of matrices, computed from the factors without forming the product."""

from __future__ import annotations

import torch
from torch import Tensor


def product_invariants(left: Tensor, scales: Tensor | None, right: Tensor | None) -> dict[str, Tensor]:
    r"""Compute functionals that determine $M = X \operatorname{diag}(s) V^\top$.

    With triangular factors $X = Q_X R_X$, $V = Q_V R_V$, the Gram matrix of the columns of M is that of the
    rows of the m×p matrix $V \operatorname{diag}(s) R_X^\top$, and M has the singular values of
    $R_X \operatorname{diag}(s) R_V^\top$.

    Args:
        left: X, ``(chains, draws, ..., n, p)``.
        scales: s, ``(chains, draws, ..., p)``; ones if None.
        right: V, ``(chains, draws, ..., m, p)``; X if None, and M is symmetric.

    Returns:
        ``{name: (chains, draws, ...)}``, see `pyro_manifold.diagnostics.invariants`.
    """
    symmetric, right = right is None, left if right is None else right.detach().to(left)
    scale = left.new_ones(left.shape[-1]) if scales is None else scales.detach().to(left)
    scaled_left, scaled_right = left * scale.unsqueeze(-2), right * scale.unsqueeze(-2)
    left_triangle, right_triangle = (torch.linalg.qr(matrix, mode="r").R for matrix in (left, right))
    # Their rows have the same inner products as the columns and rows of M.
    columns, rows = scaled_right @ left_triangle.mT, scaled_left @ right_triangle.mT
    core = left_triangle * scale.unsqueeze(-2) @ right_triangle.mT
    rank = min(*left.shape[-2:], right.shape[-2])
    found = {"pivot columns": scaled_left @ rows_at(right, pivots(columns, rank)).mT}
    if symmetric:
        found["diagonal"] = (scaled_left * left).sum(-1)
        found["eigenvalues"] = torch.linalg.eigvalsh(core).flip(-1)
        return found
    found["pivot rows"] = scaled_right @ rows_at(left, pivots(rows, rank)).mT
    found["squared row norms"], found["squared column norms"] = rows.square().sum(-1), columns.square().sum(-1)
    found["singular values"] = torch.linalg.svdvals(core)
    return found


def pivots(draws: Tensor, count: int) -> Tensor:
    """Return the ``count`` rows that span the most volume on average, ``(..., count)``, by pivoted Cholesky of E XXᵀ.

    Only the diagonal and ``count`` columns of the mean of XXᵀ are formed.
    """
    remaining = draws.square().sum(-1).mean((0, 1))  # (..., n)
    chosen, factor = [], remaining.new_zeros(*remaining.shape, 0)
    for _ in range(count):
        pivot = remaining.argmax(-1, keepdim=True)
        chosen.append(pivot)
        own = factor.gather(-2, pivot.unsqueeze(-1).expand(*factor.shape[:-2], 1, factor.shape[-1]))
        column = (draws @ rows_at(draws, pivot).mT).mean((0, 1)) - factor @ own.mT
        column = column / remaining.gather(-1, pivot).unsqueeze(-1).clamp(min=torch.finfo(draws.dtype).tiny).sqrt()
        factor = torch.cat([factor, column], -1)
        remaining = (remaining - column.squeeze(-1).square()).scatter(-1, pivot, 0.0)
    return torch.cat(chosen, -1)


def rows_at(draws: Tensor, index: Tensor) -> Tensor:
    """Select rows of each draw, ``(chains, draws, ..., n, p)`` to ``(chains, draws, ..., count, p)``."""
    return draws.gather(-2, index.unsqueeze(-1).expand(*draws.shape[:-2], index.shape[-1], draws.shape[-1]))
