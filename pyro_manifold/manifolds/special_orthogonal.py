"""The special orthogonal group SO(n): rotations of n-dimensional space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.manifolds.stiefel import Stiefel


def with_positive_determinant(matrix: Tensor) -> Tensor:
    """Return the square matrix, with the sign of its last column changed if its determinant is negative."""
    sign = torch.where(by_matrix(torch.linalg.det, matrix.detach()) < 0, -1.0, 1.0).to(matrix)
    signs = torch.ones_like(matrix[..., :1, :])
    return matrix * torch.cat([signs[..., :-1], sign[..., None, None]], -1)


@dataclass(frozen=True)
class SpecialOrthogonal(Stiefel):
    r"""n×n matrices with $X^\top X = I$ and $\det X = 1$: one of the two components of O(n).

    Tangent vectors, retractions and geodesics are those of `Stiefel`, which never leave a component.

    Source: Edelman, Arias & Smith 1998, SIAM Journal on Matrix Analysis and Applications 20, 303–353.

    Examples:
        >>> import torch
        >>> manifold = SpecialOrthogonal()
        >>> X = manifold.random_point(100, 3, 3)
        >>> bool(torch.allclose(torch.linalg.det(X), torch.ones(100))), manifold.dimension(3, 3)
        (True, 3)
        >>> bool(manifold.contains(torch.diag(torch.tensor([1.0, 1.0, -1.0]))))
        False
    """

    shape_in_words = "n×n"

    def accepts_shape(self, *shape: int) -> bool:
        """Return whether the shape has two equal sizes."""
        return super().accepts_shape(*shape) and shape[0] == shape[1]

    def components(self, *shape: int) -> int:
        """Return 1."""
        return 1

    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return matrices of shape ``(..., n, n)`` from the uniform distribution on the group (the Haar measure).

        Raises:
            ValueError: for a matrix that is not square.
        """
        if not self.accepts_shape(*shape[-2:]):
            raise ValueError(f"SpecialOrthogonal.random_point: got shape {shape[-2:]}, but rotations are n×n.")
        return with_positive_determinant(super().random_point(*shape, dtype=dtype, device=device, generator=generator))

    def projection(self, ambient: Tensor) -> Tensor:
        r"""Return the nearest rotation, $U \operatorname{diag}(1, \dots, 1, \det UV^\top) V^\top$ for $USV^\top$."""
        left, _, right = torch.linalg.svd(ambient)
        sign = by_matrix(torch.linalg.det, left @ right).sign()
        return torch.cat([left[..., :-1], left[..., -1:] * sign[..., None, None]], -1) @ right

    def membership_error(self, point: Tensor) -> Tensor:
        """Return the error as `Stiefel` does; at least 2, the distance of the other component, if det X < 0."""
        error = super().membership_error(point)
        return torch.where(by_matrix(torch.linalg.det, point) < 0, error.clamp(min=2.0), error)
