"""Positive numbers in decreasing order, such as singular values."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions import constraints as pyro_constraints
from torch import Size, Tensor
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions import constraints


class OrderedHalfNormal(TorchDistribution):
    r"""Order statistics of p independent half-normal numbers, the largest first.

    .. math::
        p(\sigma_1, \dots, \sigma_p) = p! \prod_i \frac{2}{s} \varphi(\sigma_i / s)
        \quad \text{on } \sigma_1 \ge \dots \ge \sigma_p > 0,

    a density with respect to Lebesgue's measure; φ is that of the standard normal. The mean of their squares is s².

    Args:
        size: p, how many numbers.
        scale: s, positive; a number, or a tensor whose shape is that of a batch.

    Shapes: event ``(p,)``, batch that of ``scale``; dtype and device are those of ``scale``, torch's defaults for a
    number.

    Raises:
        ValueError: unless ``size`` is a positive integer.

    Source: David & Nagaraja 2003, Order Statistics, section 2.2.

    Example:
        >>> numbers = OrderedHalfNormal(4, 2.0).sample((1000,))
        >>> bool((numbers.diff(dim=-1) <= 0).all()), bool((numbers.square().mean() - 4).abs() < 1)
        (True, True)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": pyro_constraints.positive}
    support = constraints.positive_decreasing_vector
    has_rsample = True

    def __init__(self, size: int, scale: Tensor | float = 1.0, *, validate_args: bool | None = None) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"OrderedHalfNormal: size={size!r}, expected a positive integer.")
        self.size = size
        self.scale = scale if isinstance(scale, Tensor) else torch.tensor(float(scale))
        super().__init__(self.scale.shape, Size((size,)), validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> OrderedHalfNormal:
        return type(self)(self.size, self.scale.expand(batch_shape), validate_args=self._validate_args)

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        noise = torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device)
        return (noise.abs() * self.scale.unsqueeze(-1)).sort(-1, descending=True).values

    def log_prob(self, value: Tensor) -> Tensor:
        """Of shape ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        constant = math.lgamma(self.size + 1) + 0.5 * self.size * math.log(2 / math.pi)
        squares = (value / self.scale.unsqueeze(-1)).square().sum(-1)
        return constant - self.size * self.scale.log() - 0.5 * squares
