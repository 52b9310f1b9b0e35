"""Affine transform of a standard normal to a Gaussian with low-rank plus diagonal covariance."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Transform, constraints


class LowRankAffineTransform(Transform):
    r"""Affine transform of N(0, I) to N(μ, Σ), $\Sigma = WW^\top + \mathrm{diag}(d^2)$, without an m×m matrix.

    $$
    u \mapsto \mu + d \circ (u + VCV^\top u), \quad V = W / d, \quad C = (I + K)^{-1}, \quad KK^\top = I + V^\top V,
    $$

    K lower triangular. $(I + VCV^\top)(I + VCV^\top)^\top = I + VV^\top$, because
    $CK = I - C$ makes $CKK^\top C^\top = (I - C)(I - C)^\top$. Its determinant is that of K.

    Args:
        loc: μ, ``(m,)``.
        factor: W, ``(m, rank)``.
        scale: d > 0, ``(m,)``.

    Examples:
        >>> root = LowRankAffineTransform(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> u = torch.randn(5, 3)
        >>> bool((root.inv(root(u)) - u).abs().max() < 1e-5)
        True
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, factor: Tensor, scale: Tensor, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.factor, self.scale = loc, factor, scale
        self._ratio = factor / scale.unsqueeze(-1)
        identity = torch.eye(factor.shape[-1], dtype=loc.dtype, device=loc.device)
        self._root = torch.linalg.cholesky(identity + self._ratio.mT @ self._ratio)
        self._core = torch.linalg.inv(identity + self._root)

    def with_cache(self, cache_size: int = 1) -> LowRankAffineTransform:
        return LowRankAffineTransform(self.loc, self.factor, self.scale, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * (x + (x @ self._ratio) @ self._core.mT @ self._ratio.mT)

    def _inverse(self, y: Tensor) -> Tensor:
        whitened = (y - self.loc) / self.scale
        # Woodbury's core, transposed: (C⁻¹ + VᵀV)⁻ᵀ = (K + KKᵀ)⁻ᵀ = K⁻ᵀ(I + K)⁻¹.
        inner = torch.linalg.solve_triangular(self._root.mT, self._core, upper=True, left=True)
        return whitened - (whitened @ self._ratio) @ inner @ self._ratio.mT

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        volume = self.scale.log().sum(-1) + self._root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return volume.expand(x.shape[:-1])
