"""Decompositions of operators into others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from pyro_manifold.compiled.native import distances
from pyro_manifold.compiled.native.activations import ACTIVATIONS
from pyro_manifold.compiled.native.operators import OPERATORS
from pyro_manifold.compiled.tracing import cumulative_product

_ATEN = torch.ops.aten


def _log_sum_exp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if not x.numel():
        return x.exp().sum(dim, keepdim).log()
    largest = x.amax(dim, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    total = (x - largest).exp().sum(dim, keepdim=True).log() + largest
    return total if keepdim else total.squeeze(dim)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.where(x * beta > threshold, x, (x * beta).exp().log1p() / beta)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    scale = (x.var(dims, correction=0, keepdim=True) + epsilon).rsqrt()
    result = (x - mean) * scale
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


def _split(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    return x.split(size, dim)


def _variance_and_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    correction = 1 if correction is None else correction
    return x.var(dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim=keepdim)


def _pseudo_inverse(
    x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    if hermitian:
        signed, right = torch.linalg.eigh(x)
        left, sizes = right.mT, signed.abs()
    else:
        columns, sizes, rows = torch.linalg.svd(x, full_matrices=False)
        left, signed, right = columns.mT, sizes, rows.mT
    share: Tensor | float = max(x.shape[-2:]) * torch.finfo(x.dtype).eps
    if rtol is not None:
        share = rtol.to(x).unsqueeze(-1)
    elif atol is not None:
        share = torch.where(atol > 0, 0.0, share).unsqueeze(-1)
    least = share * sizes.amax(-1, keepdim=True)
    least = least if atol is None else torch.maximum(least, atol.to(x).unsqueeze(-1))
    inverse = torch.where(sizes > least, 1 / signed, 0.0)
    return (right * inverse.unsqueeze(-2)) @ left


_WITHOUT_IMPORTS: dict[Any, Callable[..., Any]] = {
    **ACTIVATIONS,
    _ATEN.cumprod.default: cumulative_product,
    _ATEN.logsumexp.default: _log_sum_exp,
    _ATEN.linalg_pinv.atol_rtol_tensor: _pseudo_inverse,
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.softplus.default: _softplus,
    _ATEN.stack.default: _stack,
    _ATEN.unsafe_split.Tensor: _split,
    _ATEN.var_mean.correction: _variance_and_mean,
}
"""Operators frequent in densities; torch's decompositions import its compiler, which takes a second, or sympy."""

_OF_NETWORKS = ("pool", "upsample", "replication_pad", "batch_norm", "group_norm")
"""Parts of the names of operators without native code, like convolutions: such networks are sampled as graphs of torch,
whose libraries are faster for them, and torch's decompositions of these import its compiler."""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions, by torch or this package, of operators that the table lacks."""
    of_torch: dict[Any, Callable[..., Any]] = {
        operator: function
        for operator, function in decomposition_table.items()
        if isinstance(operator, OpOverload)
        and operator.__name__.split(".")[0] not in OPERATORS
        and not any(part in operator.__name__ for part in _OF_NETWORKS)
        and not operator._schema.is_mutable
    }
    return of_torch | _WITHOUT_IMPORTS | distances.TABLE
