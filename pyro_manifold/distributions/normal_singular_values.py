"""Distribution of the singular values of a matrix with independent normal entries."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions import constraints as pyro_constraints
from torch import Size, Tensor
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions import constraints


class NormalSingularValues(TorchDistribution):
    r"""Distribution of the singular values of an n×p matrix with independent N(0, s²) entries, the largest first.

    With $U \sim$ `StiefelUniform` (n, p), the loadings $W = U\,\mathrm{diag}(\sigma)$ have
    $W W^\top$ distributed as for a matrix W of normal entries: the usual prior of factor analysis and
    probabilistic PCA, without their rotations. For n ≥ p

    $$
    p(\sigma_1, \dots, \sigma_p) = \frac{2^p\,\pi^{p^2/2}}{2^{np/2}\,\Gamma_p(n/2)\,\Gamma_p(p/2)\,s^p}
    \prod_i \Bigl(\frac{\sigma_i}{s}\Bigr)^{n-p} e^{-\sigma_i^2/2s^2}
    \prod_{i<j} \frac{\sigma_i^2 - \sigma_j^2}{s^2} \quad \text{on } \sigma_1 \ge \dots \ge \sigma_p > 0,
    $$

    a density with respect to Lebesgue measure, $\Gamma_p$ the multivariate gamma function. The values repel each
    other, and the mean of the sum of their squares is nps².

    Args:
        rows: n.
        size: p ≤ n, the number of singular values.
        scale: s, positive; a number, or a tensor of the batch shape.

    Shapes: event ``(p,)``, batch that of ``scale``; dtype and device are those of ``scale``, torch's defaults for a
    number.

    Raises:
        ValueError: unless ``rows`` and ``size`` are positive integers, ``size`` at most ``rows``.

    Source: Muirhead 1982, Aspects of Multivariate Statistical Theory, theorem 3.2.18, for $\sigma^2/s^2$.

    Examples:
        >>> numbers = NormalSingularValues(20, 3, 0.5).sample((1000,))
        >>> bool((numbers.square().sum(-1).mean() - 20 * 3 * 0.25).abs() < 1)
        True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"scale": pyro_constraints.positive}
    support = constraints.positive_decreasing_vector
    has_rsample = True

    def __init__(self, rows: int, size: int, scale: Tensor | float = 1.0, *, validate_args: bool | None = None) -> None:
        for name, value in {"rows": rows, "size": size}.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"NormalSingularValues: {name}={value!r}, expected a positive integer.")
        if size > rows:
            raise ValueError(
                f"NormalSingularValues: size={size} of rows={rows}, expected at most as many values as rows."
            )
        self.rows, self.size = rows, size
        self.scale = scale if isinstance(scale, Tensor) else torch.tensor(float(scale))
        super().__init__(self.scale.shape, Size((size,)), validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> NormalSingularValues:
        scale = self.scale.expand(batch_shape)
        return type(self)(self.rows, self.size, scale, validate_args=self._validate_args)

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))[:-1]
        options: Any = {"dtype": self.scale.dtype, "device": self.scale.device}
        values: Tensor = torch.linalg.svdvals(torch.randn(*shape, self.rows, self.size, **options))
        return values * self.scale.unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        n, p = self.rows, self.size
        constant = p * math.log(2) + p**2 / 2 * math.log(math.pi) - n * p / 2 * math.log(2)
        constant -= _log_multivariate_gamma(n / 2, p) + _log_multivariate_gamma(p / 2, p)
        unit = value / self.scale.unsqueeze(-1)
        squares = unit.square()
        # All pairs twice, and 1 on the diagonal, since not every compiler supports indices.
        gaps = (squares.unsqueeze(-1) - squares.unsqueeze(-2)).abs() + torch.eye(
            p, dtype=value.dtype, device=value.device
        )
        repulsion = gaps.log().sum((-2, -1)) / 2
        own = (n - p) * unit.log().sum(-1) - squares.sum(-1) / 2
        return constant - p * self.scale.log() + own + repulsion


def _log_multivariate_gamma(a: float, p: int) -> float:
    return p * (p - 1) / 4 * math.log(math.pi) + sum(math.lgamma(a - k / 2) for k in range(p))
