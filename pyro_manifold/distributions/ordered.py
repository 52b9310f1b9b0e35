"""Distributions of order statistics, in decreasing order."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions import constraints as pyro_constraints
from torch import Size, Tensor
from torch.distributions import HalfNormal
from torch.distributions.constraints import Constraint

from pyro_manifold.compiled import broadcast_shapes
from pyro_manifold.distributions import constraints


class Ordered(TorchDistribution):
    r"""Distribution of p independent draws from a positive distribution with density f, in decreasing order.

    $$ p(\sigma_1, \dots, \sigma_p) = p! \prod_i f(\sigma_i) \quad \text{on } \sigma_1 \ge \dots \ge \sigma_p > 0, $$

    a density with respect to Lebesgue measure, the sum over all p! orders. As a prior of one scale per column it is
    equivalent to independent scales, except that the order of columns is identified and chains agree on it. `biject_to`
    of its support is `DecreasingTransform`.

    Args:
        base: a univariate distribution on positive or non-negative numbers, such as ``HalfCauchy(1.0)``, ``LogNormal``,
            ``Gamma``.
        size: p, the number of values.

    Shapes: event ``(p,)``, batch that of ``base``; dtype and device are those of its draws.

    Raises:
        ValueError: unless ``size`` is a positive integer; for a multivariate base, or one with another support.

    Source: David & Nagaraja 2003, Order Statistics, section 2.2.

    Examples:
        >>> import pyro.distributions as dist
        >>> scales = Ordered(dist.HalfCauchy(1.0), 4)
        >>> numbers = scales.sample((1000,))
        >>> numbers.shape, bool((numbers.diff(dim=-1) <= 0).all()), scales.log_prob(numbers).shape
        (torch.Size([1000, 4]), True, torch.Size([1000]))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    support = constraints.positive_decreasing_vector

    def __init__(self, base: Any, size: int, *, validate_args: bool | None = None) -> None:
        owner = type(self).__name__
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{owner}: size={size!r}, expected a positive integer.")
        if not isinstance(base, torch.distributions.Distribution) or base.event_shape:
            raise ValueError(f"{owner}: base is {base!r}, expected a univariate distribution.")
        if not _is_positive(base.support):
            raise ValueError(
                f"{owner}: base has the support {base.support}, expected a distribution of positive numbers; for real "
                "numbers use Pyro's constraints.ordered_vector."
            )
        self.base, self.size = base, size
        super().__init__(base.batch_shape, Size((size,)), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        """Return whether draws have derivatives, as for the base."""
        return bool(self.base.has_rsample)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> Ordered:
        return Ordered(self.base.expand(Size(batch_shape)), self.size, validate_args=self._validate_args)

    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        with torch.no_grad():
            return self._sorted(self.base.sample((self.size, *sample_shape)))

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        return self._sorted(self.base.rsample((self.size, *sample_shape)))

    @staticmethod
    def _sorted(numbers: Tensor) -> Tensor:
        return numbers.movedim(0, -1).sort(-1, descending=True).values

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        # The event dimension goes in front of all batch dimensions, some of which a value may lack.
        value = value.expand(broadcast_shapes(value.shape, (*self.batch_shape, self.size)))
        of_each: Tensor = self.base.log_prob(value.movedim(-1, 0)).sum(0)
        return of_each + math.lgamma(self.size + 1)


def _is_positive(support: Any) -> bool:
    kinds = (type(pyro_constraints.positive), type(pyro_constraints.nonnegative))
    return isinstance(support, kinds) and bool(torch.as_tensor(support.lower_bound == 0).all())


class OrderedHalfNormal(Ordered):
    r"""Distribution of the order statistics of p independent half-normal variables, the largest first.

    $$
    p(\sigma_1, \dots, \sigma_p) = p! \prod_i \frac{2}{s} \varphi(\sigma_i / s)
    \quad \text{on } \sigma_1 \ge \dots \ge \sigma_p > 0,
    $$

    a density with respect to Lebesgue measure; φ is that of the standard normal. The mean of their squares is s².

    Args:
        size: p, the number of values.
        scale: s, positive; a number, or a tensor of the batch shape.

    Shapes: event ``(p,)``, batch that of ``scale``; dtype and device are those of ``scale``, torch's defaults for a
    number.

    Raises:
        ValueError: unless ``size`` is a positive integer.

    Source: David & Nagaraja 2003, Order Statistics, section 2.2.

    Examples:
        >>> numbers = OrderedHalfNormal(4, 2.0).sample((1000,))
        >>> bool((numbers.diff(dim=-1) <= 0).all()), bool((numbers.square().mean() - 4).abs() < 1)
        (True, True)
    """

    def __init__(self, size: int, scale: Tensor | float = 1.0, *, validate_args: bool | None = None) -> None:
        self.scale = scale if isinstance(scale, Tensor) else torch.tensor(float(scale))
        super().__init__(HalfNormal(self.scale, validate_args=validate_args), size, validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> OrderedHalfNormal:
        return OrderedHalfNormal(self.size, self.scale.expand(batch_shape), validate_args=self._validate_args)
