"""Transform from unconstrained vectors to positive decreasing ones, by their gaps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.constraints import positive_decreasing_vector


class DecreasingTransform(Transform):
    r"""Transform of $x \in \mathbb{R}^p$ to $y_i = \sum_{j \ge i} e^{x_j}$, positive and decreasing.

    Each $e^{x_i}$ is the gap from $y_i$ to its successor, and from the last entry to 0. The Jacobian is triangular, and
    the logarithm of its determinant is $\sum_i x_i$. Pyro's transform to ``positive_ordered_vector`` has gaps between
    logarithms, so that entries grow as exponentials of exponentials.

    Shapes: ``(..., p)`` on both sides; dtype and device are the input's.

    Examples:
        >>> transform = DecreasingTransform()
        >>> y = transform(torch.zeros(3))
        >>> y.tolist(), transform.inv(y).tolist()
        ([3.0, 2.0, 1.0], [0.0, 0.0, 0.0])
    """

    domain = constraints.real_vector
    bijective = True

    @property
    def codomain(self) -> Constraint:  # type: ignore[override]
        return positive_decreasing_vector

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecreasingTransform)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        return x.exp().flip(-1).cumsum(-1).flip(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        gaps = torch.cat([y[..., :-1] - y[..., 1:], y[..., -1:]], -1)
        return gaps.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        return x.sum(-1)
