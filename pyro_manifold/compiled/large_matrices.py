"""LU factorisations of several large matrices, one at a time: on several threads torch's of a batch hang or are wrong.

Threads of torch then enter MKL's factorisation, which has threads of its own, for matrices of more than about 150 rows
(pytorch issues 141358 and 142815, in torch 2.5 to 2.13). Cholesky, QR, eigenvalues and singular values are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.broadcasting import broadcast_shapes

LARGEST_IN_BATCH = 128
"""Number of rows up to which MKL factorises without its blocked algorithm, which is the one that fails."""


def by_matrix(operator: Callable[..., Any], matrices: Tensor, *others: Tensor, **options: Any) -> Any:
    """Apply an operator that factorises square matrices by LU, in a form that is right on any number of threads.

    Args:
        operator: such as `torch.linalg.solve_ex` or `torch.linalg.slogdet`; a tensor or a tuple of tensors, each with
            the batch dimensions of the matrices.
        matrices: ``(..., n, n)``.
        *others: further arguments, such as right sides, ``(..., n, m)``.
        **options: of the operator.

    Examples:
        >>> by_matrix(torch.linalg.det, 2 * torch.eye(2).expand(3, 2, 2)).tolist()
        [4.0, 4.0, 4.0]
        >>> by_matrix(torch.linalg.inv_ex, 2 * torch.eye(150).expand(3, 150, 150))[0].amax((-2, -1)).tolist()
        [0.5, 0.5, 0.5]
    """
    if matrices.device.type != "cpu" or matrices.shape[-1] <= LARGEST_IN_BATCH:
        return operator(matrices, *others, **options)
    batch = broadcast_shapes(*[x.shape[:-2] for x in (matrices, *others)])
    if batch.numel() == 0 or not batch:
        return operator(matrices, *others, **options)
    flat = [x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (matrices, *others)]
    each = [operator(*one, **options) for one in zip(*flat, strict=True)]
    if isinstance(each[0], Tensor):
        return _stacked(each, batch)
    return tuple(_stacked(parts, batch) for parts in zip(*each, strict=True))


def _stacked(values: Any, batch: torch.Size) -> Tensor:
    return torch.stack(list(values)).reshape(*batch, *values[0].shape)
