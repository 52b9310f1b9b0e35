"""Activation functions of neural networks, in terms of the operators of the table.

Torch's own decompositions import its compiler, which takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


# ---- piecewise linear --------------------------------------------------------------------------------------------


def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * slope)


def _leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


def _threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    return torch.where(x <= threshold, value, x)


def _threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x <= threshold, 0.0, grad)


def _hardtanh(x: Tensor, least: float = -1.0, most: float = 1.0) -> Tensor:
    return x.clamp(least, most)


def _hardtanh_backward(grad: Tensor, x: Tensor, least: float, most: float) -> Tensor:
    return torch.where((x > least) & (x < most), grad, 0.0)


def _shrink_backward(grad: Tensor, x: Tensor, width: float) -> Tensor:
    return torch.where((x < -width) | (x > width), grad, 0.0)


def _hard_sigmoid(x: Tensor) -> Tensor:
    return (x + 3).clamp(0, 6) / 6


def _hard_sigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad / 6, 0.0)


# ---- smooth ------------------------------------------------------------------------------------------------------


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return torch.where(x < 0, (x * input_scale).expm1() * (alpha * scale), x * scale)


def _elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x_or_result: Tensor
) -> Tensor:
    if is_result:
        below = input_scale * (x_or_result + alpha * scale)
    else:
        below = input_scale * alpha * scale * (x_or_result * input_scale).exp()
    return grad * torch.where(x_or_result > 0, scale, below)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return _elu(x, alpha, 1.0, 1 / alpha)


def _selu(x: Tensor) -> Tensor:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + _gelu_angle(x).tanh())
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def _gelu_angle(x: Tensor) -> Tensor:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        tanh = _gelu_angle(x).tanh()
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)
    density = math.sqrt(0.5 / math.pi) * (-0.5 * x * x).exp()
    return grad * (0.5 * (1 + (x * math.sqrt(0.5)).erf()) + x * density)


def _silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def _mish(x: Tensor) -> Tensor:
    return x * x.exp().log1p().tanh()


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    tanh = x.exp().log1p().tanh()
    return grad * (tanh + x * x.sigmoid() * (1 - tanh * tanh))


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    inside = x if eps is None else x.clamp(eps, 1 - eps)
    return (inside / (1 - inside)).log()


# ---- others ------------------------------------------------------------------------------------------------------


def _nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    limits = torch.finfo(x.dtype)
    below = torch.where(x == -math.inf, limits.min if neginf is None else neginf, x)
    finite = torch.where(x == math.inf, limits.max if posinf is None else posinf, below)
    return torch.where(x.isnan(), 0.0 if nan is None else nan, finite)


def _multivariate_lgamma(x: Tensor, p: int) -> Tensor:
    total = torch.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    for k in range(p):
        total = total + (x - 0.5 * k).lgamma()
    return total


ACTIVATIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.celu.default: _celu,
    _ATEN.deg2rad.default: lambda x: x * (math.pi / 180),
    _ATEN.elu.default: _elu,
    _ATEN.elu_backward.default: _elu_backward,
    _ATEN.gelu.default: _gelu,
    _ATEN.gelu_backward.default: _gelu_backward,
    _ATEN.glu.default: _glu,
    _ATEN.hardshrink_backward.default: _shrink_backward,
    _ATEN.hardsigmoid.default: _hard_sigmoid,
    _ATEN.hardsigmoid_backward.default: _hard_sigmoid_backward,
    _ATEN.hardtanh.default: _hardtanh,
    _ATEN.hardtanh_backward.default: _hardtanh_backward,
    _ATEN.leaky_relu.default: _leaky_relu,
    _ATEN.leaky_relu_backward.default: _leaky_relu_backward,
    _ATEN.logit.default: _logit,
    _ATEN.mish.default: _mish,
    _ATEN.mish_backward.default: _mish_backward,
    _ATEN.mvlgamma.default: _multivariate_lgamma,
    _ATEN.nan_to_num.default: _nan_to_num,
    _ATEN.rad2deg.default: lambda x: x * (180 / math.pi),
    _ATEN.selu.default: _selu,
    _ATEN.silu.default: _silu,
    _ATEN.softshrink_backward.default: _shrink_backward,
    _ATEN.threshold.default: _threshold,
    _ATEN.threshold_backward.default: _threshold_backward,
}
