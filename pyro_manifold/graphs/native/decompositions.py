"""Operators in terms of others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from pyro_manifold.graphs.native.operators import OPERATORS
from pyro_manifold.graphs.tracing import cumulative_product

_ATEN = torch.ops.aten


def _log_add_exp(x: Tensor, y: Tensor) -> Tensor:
    equal = (x == y) & x.isinf()
    return torch.where(equal, x, torch.maximum(x, y) + torch.log1p(torch.exp(-(x - y).abs())))


def _log_sum_exp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if not x.numel():
        return x.exp().sum(dim, keepdim).log()
    largest = x.amax(dim, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    total = (x - largest).exp().sum(dim, keepdim=True).log() + largest
    return total if keepdim else total.squeeze(dim)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.where(x * beta > threshold, x, (x * beta).exp().log1p() / beta)


def _x_log_y(x: Tensor, y: Tensor) -> Tensor:
    dtype = torch.result_type(x, y)
    logarithm = y.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).log()
    return torch.where(y.isnan(), math.nan, torch.where(x == 0, 0.0, x * logarithm))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    scale = (x.var(dims, correction=0, keepdim=True) + epsilon).rsqrt()
    result = (x - mean) * scale
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


_WITHOUT_IMPORTS: dict[Any, Callable[..., Any]] = {
    _ATEN.cumprod.default: cumulative_product,
    _ATEN.logaddexp.default: _log_add_exp,
    _ATEN.logsumexp.default: _log_sum_exp,
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.softplus.default: _softplus,
    _ATEN.xlogy.Tensor: _x_log_y,
}
"""What densities often have: to decompose these, torch imports its compiler, which takes a second."""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Of all operators that the table lacks, what torch or this file can write in terms of others."""
    of_torch: dict[Any, Callable[..., Any]] = {
        operator: function
        for operator, function in decomposition_table.items()
        if isinstance(operator, OpOverload)
        and operator.__name__.split(".")[0] not in OPERATORS
        and not operator._schema.is_mutable
    }
    return of_torch | _WITHOUT_IMPORTS
