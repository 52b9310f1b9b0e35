r"""Rotations of the rows of a matrix, as pairs of Householder reflectors.

The reflector of u is the reflection $H_u = I - 2 u u^\top / u^\top u$, which takes u to -u.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_rows(matrix: Tensor, start: int, direction: Tensor, inverse: bool = False) -> Tensor:
    r"""Apply to the rows from ``start`` on the rotation that takes $e_1$ to ``direction``, normalised.

    It is $G = H_u H_{e_1}$, the reflector of $u = v/\|v\| + e_1$ after that of $e_1$: the smallest
    such rotation, and the identity for v along $e_1$. It is smooth except for v opposite to $e_1$, where
    $H_{e_1}$ alone is applied (in one dimension it takes $e_1$ to v, which no rotation does).

    Args:
        matrix: ``(..., n, p)``.
        start: index of the first row that the rotation acts on.
        direction: v, ``(..., n - start)``, of any length; zero counts as $e_1$.
        inverse: apply $G^{-1} = H_{e_1} H_u$ instead.

    Returns:
        ``(..., n, p)``.

    Examples:
        >>> turned = rotate_rows(torch.eye(2), 0, torch.tensor([0.0, 2.0]))
        >>> torch.allclose(turned, torch.tensor([[0.0, -1.0], [1.0, 0.0]]), atol=1e-6)
        True
    """
    # Scaled first: squares of very small or large entries would leave the range of the dtype.
    scale = direction.detach().abs().amax(-1, keepdim=True)
    direction = direction / torch.where(scale > 0, scale, 1.0)
    head, tail = direction[..., :1], direction[..., 1:]
    tail_square = tail.square().sum(-1, keepdim=True)
    against = (tail_square == 0) & (head < 0)
    degenerate = (tail_square == 0) & (head <= 0)
    # Masked before the root, so that the branch not taken cannot put NaN into the derivative.
    length = torch.where(degenerate, 1.0, head.square() + tail_square).sqrt()
    # 1 + v₁/‖v‖ without cancellation where v points away from e₁.
    without_cancellation = tail_square / (length * (length - head.clamp(max=0)))
    first = torch.where(head < 0, without_cancellation, 1 + head / length)
    first = torch.where(degenerate, 2.0, first)
    axis = torch.cat([first, tail / length], -1).unsqueeze(-1)

    def reflect(rows: Tensor) -> Tensor:
        reflected = rows - axis * ((axis.mT @ rows) / first.unsqueeze(-1))
        return torch.where(against.unsqueeze(-1), rows, reflected)

    def flip_first(rows: Tensor) -> Tensor:
        return torch.cat([-rows[..., :1, :], rows[..., 1:, :]], -2)

    rows = matrix[..., start:, :]
    rows = flip_first(reflect(rows)) if inverse else reflect(flip_first(rows))
    return torch.cat([matrix[..., :start, :].expand(*rows.shape[:-2], -1, -1), rows], -2)
