"""Transforms from unconstrained space to rotations, the square orthonormal matrices with determinant 1."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Transform, constraints

from pyro_manifold.distributions.constraints import special_orthogonal
from pyro_manifold.distributions.transforms.householder import directions_of, rotated
from pyro_manifold.distributions.transforms.polar import PolarTransform
from pyro_manifold.manifolds import with_positive_determinant


class RotationTransform(Transform):
    r"""Transform of n - 1 directions $v_k \in \mathbb{R}^{n-k+1}$, k = 1..n - 1, to a rotation.

    $X = G_1 G_2 \cdots G_{n-1}$, $G_k$ the smallest rotation of rows k..n that takes $e_1$ to
    $v_k / \|v_k\|$, as in `HouseholderTransform`: each has determinant 1, and so has X. The dimension of v exceeds the
    degrees of freedom of X, so a parameter expansion takes the place of the Jacobian determinant: with

    $$ \texttt{log\_abs\_det\_jacobian}(v, X) = \sum_k \log N(v_k; 0, I) $$

    the density 1 of X becomes the standard normal density of v, under which X is uniform on SO(n). The base measure of
    densities of X is that uniform distribution, the **normalised** Haar measure of SO(n).

    The map is smooth except where some v_k points exactly opposite to $e_1$, or is zero. The pseudo-inverse gives
    the v_k unit length.

    Shapes: ``(..., n(n+1)/2 - 1)`` to ``(..., n, n)``; dtype and device are the input's.

    Raises:
        ValueError: for a length other than n(n+1)/2 - 1 with n ≥ 2.

    Source: Diaconis & Shahshahani, The subgroup algorithm, 1987; Mezzadri 2007, arXiv math-ph/0609050.

    Examples:
        >>> transform = RotationTransform()
        >>> X = transform(torch.randn(5))
        >>> X.shape, bool(torch.allclose(torch.linalg.det(X), torch.tensor(1.0)))
        (torch.Size([3, 3]), True)
    """

    domain = constraints.real_vector
    codomain = special_orthogonal
    bijective = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RotationTransform)

    __hash__ = None  # type: ignore[assignment]

    def _call(self, x: Tensor) -> Tensor:
        n = _size_of_rotation(x.shape[-1])
        directions = x.split([n - k for k in range(n - 1)], -1)
        return rotated(torch.eye(n, dtype=x.dtype, device=x.device), [_off_the_axis(v) for v in directions])

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat(directions_of(y, y.shape[-1] - 1, _off_the_axis), -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Any) -> Tensor:
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1)

    def forward_shape(self, shape: Size) -> Size:
        n = _size_of_rotation(shape[-1])
        return Size([*shape[:-1], n, n])

    def inverse_shape(self, shape: Size) -> Size:
        n = shape[-1]
        return Size([*shape[:-2], n * (n + 1) // 2 - 1])


def _size_of_rotation(length: int) -> int:
    """Return the n of rotations with unconstrained vectors of a length n(n+1)/2 - 1; raise ValueError if none."""
    n = (math.isqrt(8 * length + 9) - 1) // 2
    if n < 2 or n * (n + 1) // 2 - 1 != length:
        raise ValueError(
            f"RotationTransform: got a vector of length {length}, expected n(n+1)/2 - 1 for n×n rotations: 2, 5, 9, 14 "
            "and so on."
        )
    return n


def _off_the_axis(direction: Tensor) -> Tensor:
    """Move directions exactly opposite to $e_1$, to which no single smallest rotation leads, by a little."""
    head, second, rest = direction[..., :1], direction[..., 1:2], direction[..., 2:]
    against = (head < 0) & (direction[..., 1:] == 0).all(-1, keepdim=True)
    little = float(torch.finfo(direction.dtype).eps) ** 0.75  # its square does not underflow
    return torch.cat([head, torch.where(against, -little * head, second), rest], -1)


class PolarRotationTransform(PolarTransform):
    r"""Polar factor of a square matrix Z, with the sign of its last column changed if the determinant is negative.

    A standard normal Z becomes a uniform rotation, and ``log_abs_det_jacobian`` is that of `PolarTransform`. The map is
    smooth except where Z is singular, between the two signs of its determinant. A rotation is its own pseudo-inverse,
    so that a parameter with this constraint is its own unconstrained value.

    Shapes: ``(..., n, n)`` on both sides; dtype and device are the input's.

    Raises:
        ValueError: for a matrix that is not square.

    Examples:
        >>> X = PolarRotationTransform(special_orthogonal)(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
        >>> torch.allclose(X, torch.eye(2), atol=1e-6)
        True
    """

    def with_cache(self, cache_size: int = 1) -> PolarRotationTransform:
        return PolarRotationTransform(self.codomain, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        if x.shape[-1] != x.shape[-2]:
            raise ValueError(f"constraints.special_orthogonal: got shape {tuple(x.shape[-2:])}, but rotations are n×n.")
        return with_positive_determinant(super()._call(x))
