"""Transform from vectors to a matrix with orthonormal columns by Householder reflectors, without an SVD."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Transform, constraints

from pyro_manifold.distributions.constraints import householder_stiefel
from pyro_manifold.manifolds import check_shape, rotate_rows


class HouseholderTransform(Transform):
    r"""Transform of p directions $v_k \in \mathbb{R}^{n-k+1}$ to a matrix with orthonormal columns.

    $G_k$, on rows k..n, is the smallest rotation that takes $e_1$ to $v_k / \|v_k\|$, a pair of
    Householder reflectors; X is the first p columns of $G_1 G_2 \cdots G_p$. The dimension of v exceeds the degrees of
    freedom of X, so a parameter expansion takes the place of the Jacobian determinant: with

    $$ \texttt{log\_abs\_det\_jacobian}(v, X) = \sum_k \log N(v_k; 0, I) $$

    the density 1 of X becomes the standard normal density of v, under which X is uniform (Stewart 1980; Mezzadri 2007):
    the lengths of the v_k are the expanded parameters, their directions are independent and uniform. The base measure
    of densities of X is therefore the uniform distribution, the **normalised** Haar measure.

    The map is smooth except where some v_k points exactly opposite to $e_1$, or is zero.
    The pseudo-inverse gives the v_k unit length.

    Args:
        n: number of rows.
        p: number of columns.

    Shapes: ``(..., np - p(p-1)/2)`` to ``(..., n, p)``.

    Raises:
        ValueError: unless 1 ≤ p ≤ n.

    Examples:
        >>> transform = HouseholderTransform(3, 2)
        >>> X = transform(torch.randn(5))
        >>> bool(torch.allclose(transform(transform.inv(X)), X, atol=1e-5))
        True
    """

    domain = constraints.real_vector
    bijective = False

    def __init__(self, n: int, p: int, cache_size: int = 0) -> None:
        check_shape(n, p, "HouseholderTransform")
        super().__init__(cache_size=cache_size)
        self.n, self.p = n, p
        self._lengths = [n - k for k in range(p)]

    @constraints.dependent_property(is_discrete=False, event_dim=2)
    def codomain(self) -> constraints.Constraint:
        return householder_stiefel(self.n, self.p)

    def with_cache(self, cache_size: int = 1) -> HouseholderTransform:
        return HouseholderTransform(self.n, self.p, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HouseholderTransform) and (self.n, self.p) == (other.n, other.p)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        matrix = torch.eye(self.n, self.p, dtype=x.dtype, device=x.device)
        return rotated(matrix, x.split(self._lengths, -1))

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat(directions_of(y, self.p), -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1)

    def forward_shape(self, shape: Size) -> Size:
        return Size([*shape[:-1], self.n, self.p])

    def inverse_shape(self, shape: Size) -> Size:
        return Size([*shape[:-2], sum(self._lengths)])


def rotated(matrix: Tensor, directions: Sequence[Tensor]) -> Tensor:
    r"""Apply $G_1 G_2 \cdots$ to a matrix ``(n, p)``, by directions ``(..., n)``, ``(..., n - 1)``, ..."""
    matrix = matrix.expand(*directions[0].shape[:-1], -1, -1)
    # Innermost rotation first: before G_k acts, only rows and columns k.. differ from the identity.
    for k, direction in reversed(list(enumerate(directions))):
        matrix = rotate_rows(matrix, k, direction)
    return matrix


def directions_of(matrix: Tensor, count: int, direction_of: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
    """Return unit vectors whose rotations make the first columns of an orthonormal matrix."""
    directions = []
    for k in range(count):
        directions.append(direction_of(matrix[..., k:, k]))
        # Undoing G_k leaves e_k in column k.
        matrix = rotate_rows(matrix, k, directions[-1], inverse=True)
    return directions
