"""Closed form and table of `langevin_table` as functions of tensors, with derivatives of every order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.distributions.langevin_table import coefficients, scale


def log_two_columns(total: Tensor, product: Tensor, n: int) -> Tensor:
    r"""Compute $\log {}_0F_1(n/2; \operatorname{diag}(d, e)^2/4)$ from d² + e² and d²e², in float64.

    With e = 0 it is the logarithm for one column.

    Args:
        total: d² + e², any shape.
        product: d²e², of the same shape.
        n: rows, at least 2.

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> round(log_two_columns(zero + 4.0, zero, 3).exp().item(), 6)  # sinh(2) / 2
        1.81343
    """
    c = scale(n)
    t, delta = total.reshape(-1) / c**2, product.reshape(-1) / c**4
    q = (1 + t + delta).sqrt()
    q_less = (t + delta) / (1 + q)  # q - 1 without cancellation
    s_less = (t + 2 * q_less) / (2 + (2 + t + 2 * q).sqrt())
    closed = c * s_less - (n - 2) / 2 * torch.log1p((s_less + q_less) / 4) - torch.log1p(s_less / 2) / 2
    stretch = 1 + 4 * delta / (1 + t)
    points = 2 * torch.stack([stretch.rsqrt(), (stretch / (1 + t)).sqrt()]) - 1
    remainder = _Series.apply(points, _chebyshev(points.detach(), coefficients(n, 0).shape[-1]), n, 0).squeeze(0)
    return (closed + remainder).reshape(total.shape)


def _chebyshev(points: Tensor, count: int) -> Tensor:
    """Return the first Chebyshev polynomials, ``(count, *points.shape)``, by T₂ₐ₊ = 2 TₐT₊ - T₋ in few operations."""
    values = torch.stack([torch.ones_like(points), points])
    while len(values) < count:
        last = len(values) - 1
        new = min(last, count - 1 - last)
        products = 2 * values[last] * values[1 : new + 1]
        values = torch.cat([values, products - values[last - new : last].flip(0)])
    return values


class _Series(torch.autograd.Function):
    """All derivatives of one order of R, ``(order + 1, points)``, by `langevin_table.coefficients`.

    The polynomials at the points are an input without derivative, so that they are computed once for all orders.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(points: Tensor, polynomials: Tensor, n: int, order: int) -> Tensor:
        table = torch.as_tensor(coefficients(n, order), device=points.device)
        first, second = polynomials[:, 0], polynomials[: table.shape[1], 1]
        products = (table.flatten(0, 1) @ first).unflatten(0, table.shape[:2])
        return (products * second).sum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.n, ctx.order = inputs[2:]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        slopes = _Series.apply(*ctx.saved_tensors, ctx.n, ctx.order + 1)
        return torch.stack([(cotangent * part).sum(0) for part in (slopes[:-1], slopes[1:])]), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: object) -> Tensor:
        slopes = _Series.apply(*ctx.saved_tensors, ctx.n, ctx.order + 1)
        return slopes[:-1] * tangent[0] + slopes[1:] * tangent[1]
