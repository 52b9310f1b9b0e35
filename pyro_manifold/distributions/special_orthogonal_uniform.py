"""The uniform distribution of rotations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor

from pyro_manifold.distributions import constraints
from pyro_manifold.distributions.stiefel_uniform import StiefelUniform
from pyro_manifold.manifolds import SpecialOrthogonal


class SpecialOrthogonalUniform(StiefelUniform):
    r"""Uniform distribution of rotations: n×n matrices X with $X^\top X = I$ and $\det X = 1$.

    The set of these matrices is the group SO(n), the distribution its normalised Haar measure: the only one under which
    QX is distributed as X for every rotation Q. It is the base measure of densities of sites with the support
    `constraints.special_orthogonal`, so ``log_prob`` is 0. `StiefelUniform` (n, n) has both signs of the determinant.

    Args:
        n: number of rows and columns, at least 2.
        batch_shape: shape of a batch of independent matrices.
        dtype: dtype of the draws; torch's default dtype if None.
        device: device of the draws; torch's default device if None.

    Shapes: event ``(n, n)``.

    Raises:
        ValueError: unless n ≥ 2.

    Source: Mezzadri 2007, arXiv math-ph/0609050.

    Examples:
        >>> R = SpecialOrthogonalUniform(3).sample()
        >>> bool(torch.allclose(R.T @ R, torch.eye(3), atol=1e-5)), round(float(torch.linalg.det(R)), 3)
        (True, 1.0)
    """

    def __init__(
        self,
        n: int,
        batch_shape: Size | tuple[int, ...] = (),
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(n, int) or n < 2:
            raise ValueError(f"SpecialOrthogonalUniform: n={n!r}, expected an integer of 2 or more.")
        super().__init__(n, n, batch_shape, dtype=dtype, device=device, validate_args=validate_args)
        self._support = constraints.special_orthogonal

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"SpecialOrthogonalUniform(n={self.n}{batch})"

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> SpecialOrthogonalUniform:
        return type(self)(
            self.n, Size(batch_shape), dtype=self.dtype, device=self.device, validate_args=self._validate_args
        )

    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        with torch.no_grad():
            return SpecialOrthogonal().random_point(*shape, dtype=self.dtype, device=self.device)
