"""The Grassmann manifold: the set of p-dimensional subspaces of n-dimensional space."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyro_manifold.manifolds.stiefel import RetractionMethod, Stiefel


@dataclass(frozen=True)
class Grassmann(Stiefel):
    r"""Subspaces, each represented by an n×p matrix X with orthonormal columns that span it.

    XR for an orthogonal R spans the same subspace and is the same point. Tangent vectors (directions of movement) at X
    are the *horizontal* matrices, $X^\top r = 0$: those that rotate no column within the subspace. They are
    tangent vectors of `Stiefel` too, with the same geodesics, so only the removal of these rotations differs from
    `Stiefel`.

    Source: Edelman, Arias & Smith 1998, SIAM Journal on Matrix Analysis and Applications 20, 303–353, section 2.5.

    Examples:
        >>> import torch
        >>> manifold = Grassmann()
        >>> X = manifold.random_point(5, 2)
        >>> r = manifold.tangent_projection(X, torch.randn(5, 2))
        >>> bool((X.mT @ r).abs().max() < 1e-6), manifold.dimension(5, 2)
        (True, 6)
    """

    def dimension(self, *shape: int) -> int:
        r"""Return $p(n-p)$."""
        n, p = shape
        return p * (n - p)

    def components(self, *shape: int) -> int:
        """Return 1: the sign of the determinant depends on the basis, not on the subspace."""
        return 1

    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        r"""Return $P_X(G) = (I - XX^\top)G$, orthogonal in the inner product tr AᵀB."""
        return ambient - point @ (point.mT @ ambient)

    def retraction(self, point: Tensor, tangent: Tensor, method: RetractionMethod = "polar") -> Tensor:
        """Retract as `Stiefel` does; the polar factor does not depend on the basis: $R_{XQ}(rQ) = R_X(r)Q$."""
        return super().retraction(point, tangent, method)
