"""Distributions of subspaces, on the Grassmann manifold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor

from pyro_manifold.distributions import constraints
from pyro_manifold.distributions.matrix_bingham import MatrixBingham
from pyro_manifold.distributions.stiefel_uniform import StiefelUniform


class GrassmannUniform(StiefelUniform):
    r"""Uniform distribution of p-dimensional subspaces, each given by an n×p matrix with orthonormal columns.

    The base measure of densities of sites with the support `constraints.grassmann`, so ``log_prob`` is 0. The
    rest of a model must depend on the span of X alone, by $X X^\top$ for example: samplers that move on the manifold
    then rotate no column within the span. `StiefelUniform` is for models that depend on the columns themselves.

    Args:
        n: number of rows.
        p: dimension of the subspaces, at most n.
        batch_shape: shape of a batch of independent subspaces.
        dtype: dtype of the draws; torch's default dtype if None.
        device: device of the draws; torch's default device if None.

    Shapes: event ``(n, p)``.

    Raises:
        ValueError: unless 1 ≤ p ≤ n.

    Source: Chikuse 2003, Statistics on Special Manifolds, section 2.

    Examples:
        >>> GrassmannUniform(4, 2).sample().shape, GrassmannUniform(4, 2).support
        (torch.Size([4, 2]), grassmann)
    """

    def __init__(
        self,
        n: int,
        p: int,
        batch_shape: Size | tuple[int, ...] = (),
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(n, p, batch_shape, dtype=dtype, device=device, validate_args=validate_args)
        self._support = constraints.grassmann

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"GrassmannUniform(n={self.n}, p={self.p}{batch})"

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> GrassmannUniform:
        options = {"dtype": self.dtype, "device": self.device, "validate_args": self._validate_args}
        return type(self)(self.n, self.p, Size(batch_shape), **options)


class GrassmannLangevin(MatrixBingham):
    r"""Langevin distribution of p-dimensional subspaces, $p(X) \propto e^{\operatorname{tr} A X X^\top}$.

    It is linear in the projector $X X^\top$, hence the name, and `MatrixBingham` (A, p=p) with the support
    `constraints.grassmann`. **``log_prob`` leaves out the normalising constant**, and raises if A requires a gradient.
    The base measure is the uniform distribution of subspaces; draws are exact.

    Args:
        A: ``(..., n, n)``; only its symmetric part counts. Gives dtype and device.
        p: dimension of the subspaces, at most n.

    Shapes: batch ``(...)``, event ``(n, p)``.

    Raises:
        ValueError: if A is not a square floating-point matrix or unless 1 ≤ p ≤ n.
        NotImplementedError: by ``log_prob``, if A requires a gradient, so that it may be inferred.
        RuntimeError: by ``sample``, if the acceptance rate is too low for draws in reasonable time.

    Source: Chikuse 2003, Statistics on Special Manifolds, section 2.3.

    Examples:
        >>> X = GrassmannLangevin(torch.diag(torch.tensor([1e9, 1e9, 0.0])), 2).sample()
        >>> X[2].abs().max().item() < 1e-3
        True
    """

    def __init__(self, A: Tensor, p: int, *, validate_args: bool | None = None) -> None:
        super().__init__(A, p=p, validate_args=validate_args)
        self._support = constraints.grassmann
