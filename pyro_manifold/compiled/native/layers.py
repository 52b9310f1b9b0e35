"""Layers of neural networks and losses, in terms of other operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.native.values import UnsupportedOperatorError

_ATEN = torch.ops.aten
_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Derivatives with respect to input, weight and bias; None for those that are not requested."""

# ---- normalisation -----------------------------------------------------------------------------------------------


def _moments(x: Tensor, dims: list[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the mean over dimensions, and the reciprocal of the standard deviation."""
    return x.mean(dims), (x.var(dims, correction=0) + epsilon).rsqrt()


def _derivative_of_standardised(gradient: Tensor, standardised: Tensor, scale: Tensor, dims: list[int]) -> Tensor:
    """Return the derivative with respect to x, from the gradient with respect to (x - mean) scale."""
    slope = (gradient * standardised).mean(dims, keepdim=True)
    return (gradient - gradient.mean(dims, keepdim=True) - standardised * slope) * scale


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply by a weight and add a bias for each channel, the second dimension."""
    x = x if weight is None else x * _of_channels(weight, x)
    return x if bias is None else x + _of_channels(bias, x)


def _of_channels(value: Tensor, x: Tensor) -> Tensor:
    return value.reshape(1, -1, *[1] * (x.dim() - 2))


def _scaled_backward(
    gradient: Tensor,
    standardised: Tensor,
    derivative: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    mask: Sequence[bool],
) -> _Gradients:
    """Return derivatives of a standardised input with a weight and a bias for each channel."""
    others = [d for d in range(gradient.dim()) if d != 1]
    return (
        derivative(_scaled(gradient, weight, None)) if mask[0] else None,
        (gradient * standardised).sum(others) if mask[1] else None,
        gradient.sum(others) if mask[2] else None,
    )


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not training:
        assert mean is not None
        assert variance is not None
        nothing = x.new_zeros((0,))
        standardised = (x - _of_channels(mean, x)) * _of_channels((variance + epsilon).rsqrt(), x)
        return _scaled(standardised, weight, bias), nothing, nothing
    if mean is not None:
        raise UnsupportedOperatorError("a batch norm that changes its running statistics")
    mean, scale = _moments(x, _all_but_channels(x), epsilon)
    return _scaled((x - _of_channels(mean, x)) * _of_channels(scale, x), weight, bias), mean, scale


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    mean: Tensor | None,
    scale: Tensor | None,
    training: bool,
    epsilon: float,
    mask: Sequence[bool],
) -> _Gradients:
    if not training:
        assert running_variance is not None
        mean, scale = running_mean, (running_variance + epsilon).rsqrt()
    assert mean is not None
    assert scale is not None
    factor = _of_channels(scale, x)
    standardised = (x - _of_channels(mean, x)) * factor

    def derivative(gradient: Tensor) -> Tensor:
        if not training:
            return gradient * factor
        return _derivative_of_standardised(gradient, standardised, factor, _all_but_channels(x))

    return _scaled_backward(gradient, standardised, derivative, weight, mask)


def _all_but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(n, groups, -1)
    mean, scale = _moments(rows, [-1], epsilon)
    standardised = (rows - mean.unsqueeze(-1)) * scale.unsqueeze(-1)
    return _scaled(standardised.reshape(n, channels, size), weight, bias).reshape(x.shape), mean, scale


def _group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    mask: Sequence[bool],
) -> _Gradients:
    rows = (x.reshape(n, groups, -1) - mean.unsqueeze(-1)) * scale.unsqueeze(-1)

    def derivative(gradient: Tensor) -> Tensor:
        by_rows = _derivative_of_standardised(gradient.reshape(rows.shape), rows, scale.unsqueeze(-1), [-1])
        return by_rows.reshape(x.shape)

    standardised = rows.reshape(n, channels, size)
    return _scaled_backward(gradient.reshape(n, channels, size), standardised, derivative, weight, mask)


# ---- products and losses -----------------------------------------------------------------------------------------


def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    over: Sequence[int],
    unroll: int = 1,
) -> Tensor:
    """Return a sum of products of three factors, each with new dimensions."""
    for dims, place in ((expand_x, 0), (expand_y, 1), (expand_z, 2)):
        for dim in sorted(dims):
            x, y, z = (value.unsqueeze(dim) if k == place else value for k, value in enumerate((x, y, z)))
    return (x * y * z).sum(list(over))


_REDUCTIONS: list[Callable[[Tensor], Tensor]] = [lambda x: x, torch.mean, torch.sum]


def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    size = (x - target).abs()
    return _REDUCTIONS[reduction](torch.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta)))


def _huber_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    slope = gradient / x.numel() if reduction == 1 else gradient
    return slope * (x - target).clamp(-delta, delta)


def _split(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    return x.split(size, dim)


def _variance_and_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    correction = 1 if correction is None else correction
    return x.var(dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim=keepdim)


TABLE: dict[Any, Callable[..., Any]] = {
    _ATEN._trilinear.default: _trilinear,
    _ATEN.huber_loss.default: _huber_loss,
    _ATEN.huber_loss_backward.default: _huber_loss_backward,
    _ATEN.native_batch_norm.default: _batch_norm,
    _ATEN.native_batch_norm_backward.default: _batch_norm_backward,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN.native_group_norm_backward.default: _group_norm_backward,
    _ATEN.unsafe_split.Tensor: _split,
    _ATEN.var_mean.correction: _variance_and_mean,
}
"""Torch's decompositions of most of these import its compiler or need operators that the table lacks."""
