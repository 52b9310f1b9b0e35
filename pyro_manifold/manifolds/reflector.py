"""Householder reflectors acting on the rows of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def reflect_rows(matrix: Tensor, start: int, direction: Tensor) -> Tensor:
    r"""Apply to rows ``start``.. the reflector that exchanges :math:`e_1` and ``direction``, normalised.

    For :math:`u = v/\|v\| - e_1` the reflector is :math:`I - 2uu^\top/u^\top u = I + u u^\top / u_1`. The first
    entry of u is computed without the cancellation in :math:`v_1/\|v\| - 1`. A direction along
    :math:`e_1`, or zero, gives the identity.

    Args:
        matrix: ``(..., n, p)``.
        start: first row that the reflector acts on.
        direction: v, ``(..., n - start)``, of any length.

    Returns:
        ``(..., n, p)``.

    Example:
        >>> reflect_rows(torch.eye(2), 0, torch.tensor([0.0, 2.0])).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    head, tail = direction[..., :1], direction[..., 1:]
    tail_square = tail.square().sum(-1, keepdim=True)
    aligned = (tail_square == 0) & (head >= 0)
    # Masked before the root, so that the untaken branch cannot put NaN into the derivative.
    length = torch.where(aligned, 1.0, head.square() + tail_square).sqrt()
    without_cancellation = -tail_square / (length * (length + head.clamp(min=0)))
    first = torch.where(head > 0, without_cancellation, head / length - 1)
    first = torch.where(aligned, -1.0, first)
    axis = torch.cat([first, tail / length], -1).unsqueeze(-1)
    rows = matrix[..., start:, :]
    reflected = rows + axis * ((axis.mT @ rows) / first.unsqueeze(-1))
    reflected = torch.where(aligned.unsqueeze(-1), rows, reflected)
    return torch.cat([matrix[..., :start, :], reflected], -2)
