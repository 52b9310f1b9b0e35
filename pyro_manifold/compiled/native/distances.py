"""Distances between the rows of matrices, in terms of other operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.tracing import unrecorded

_ATEN = torch.ops.aten


def _norm(difference: Tensor, p: float) -> Tensor:
    """Return the p-norm over the last dimension; for p = 0 the number of entries that are not zero."""
    size = difference.abs()
    if p == 0:
        return torch.where(size > 0, 1.0, size).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == math.inf:
        return size.amax(-1)
    if p == 2:
        return size.square().sum(-1).sqrt()
    return (size**p).sum(-1) ** (1 / p)


def _norm_backward(gradient: Tensor, difference: Tensor, p: float, norm: Tensor) -> Tensor:
    """Return the derivative of the norm with respect to the difference; 0 where there is none."""
    if p == 0:
        return torch.zeros_like(difference)
    sign, size = difference.sign(), difference.abs()
    gradient, norm = gradient.unsqueeze(-1), norm.unsqueeze(-1)
    if p == 1:
        return gradient * sign
    if p == math.inf:
        return torch.where(size == norm, gradient * sign, 0.0)
    if p == 2:
        return torch.where(norm == 0, 0.0, gradient * difference / norm)
    nothing = (norm == 0) | (difference == 0) if p < 1 else norm == 0
    return torch.where(nothing, 0.0, sign * size ** (p - 1) * gradient / norm ** (p - 1))


def _between(x: Tensor, y: Tensor) -> Tensor:
    """Return the difference of each row of x and each row of y."""
    return x.unsqueeze(-2) - y.unsqueeze(-3)


def _distances(x: Tensor, y: Tensor, p: float, _: int | None = None) -> Tensor:
    return _norm(_between(x, y), p)


def _distances_backward(gradient: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """Return the derivative with respect to x."""
    return _norm_backward(gradient, _between(x, y), p, distances).sum(-2)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return all pairs of rows, each once: the indices of the first and of the second."""
    with unrecorded():
        first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
        return first.clone(), second.clone()


def _distances_of_pairs(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = _pairs(x)
    return _norm(x.index_select(0, first) - x.index_select(0, second), p)


def _distances_of_pairs_backward(gradient: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    first, second = _pairs(x)
    terms = _norm_backward(gradient, x.index_select(0, first) - x.index_select(0, second), p, distances)
    return torch.zeros_like(x).index_add(0, first, terms).index_add(0, second, -terms)


TABLE: dict[Any, Callable[..., Any]] = {
    _ATEN._cdist_forward.default: _distances,
    _ATEN._cdist_backward.default: _distances_backward,
    _ATEN._pdist_forward.default: _distances_of_pairs,
    _ATEN._pdist_backward.default: _distances_of_pairs_backward,
}
"""Distances of few rows: beyond 25, ``torch.cdist`` uses a matrix product by default."""
