"""The matrix Fisher distribution of three-dimensional rotations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions import constraints
from pyro_manifold.distributions.bingham import Bingham
from pyro_manifold.distributions.bingham_normaliser import log_bingham_normaliser
from pyro_manifold.distributions.on_manifold import OnStiefel
from pyro_manifold.distributions.repeated_rows import repeated_rows
from pyro_manifold.manifolds import SpecialOrthogonal


class MatrixFisher(OnStiefel):
    r"""Matrix Fisher (matrix von Mises–Fisher) distribution of rotations of three-dimensional space.

    $$ p(R) = e^{\operatorname{tr} F^\top R} / c(F), \qquad R \in SO(3) $$

    The base measure is the uniform distribution of rotations (the normalised Haar measure). With the unit quaternion q
    of R, $\operatorname{tr} F^\top R = q^\top B q$ for a symmetric 4×4 matrix B that is linear in F, and q is uniform
    where R is. So c(F) is the constant of `Bingham` (B), a one-dimensional integral, ``log_prob`` is normalised and
    has first derivatives in F, and a draw is that of a Bingham quaternion. `MatrixLangevin` (3, 3) is the distribution
    on all orthogonal matrices, with both signs of the determinant.

    Args:
        concentration: F, ``(..., 3, 3)``; gives dtype and device.

    Shapes: batch ``(...)``, event ``(3, 3)``.

    Raises:
        ValueError: if F is not a floating-point tensor of 3×3 matrices. SO(n) for other n has no constant here.

    Source: Khatri and Mardia 1977; Prentice 1986, J. R. Stat. Soc. B 48, for quaternions; Lee 2018, IEEE Trans. Autom.
    Control 63, for moments and modes.

    Examples:
        >>> d = MatrixFisher(1e6 * torch.eye(3))
        >>> torch.allclose(d.sample(), torch.eye(3), atol=0.02), torch.allclose(d.mode, torch.eye(3), atol=1e-6)
        (True, True)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": torch_constraints.independent(torch_constraints.real, 2)
    }
    support = constraints.special_orthogonal

    def __init__(self, concentration: Tensor, *, validate_args: bool | None = None) -> None:
        shape = tuple(getattr(concentration, "shape", ()))
        if not torch.is_tensor(concentration) or shape[-2:] != (3, 3):
            raise ValueError(
                f"MatrixFisher: F has shape {shape}, expected a tensor (..., 3, 3); for rotations of other dimensions "
                "use SpecialOrthogonalUniform and pyro.factor with tr FᵀR, which is not normalised in F."
            )
        if concentration.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"MatrixFisher: F has dtype {concentration.dtype}, expected float32 or float64.")
        self.concentration, self._rows = concentration, repeated_rows(concentration, 2)
        super().__init__(concentration.shape[:-2], Size((3, 3)), validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> MatrixFisher:
        new: MatrixFisher = self._get_checked_instance(MatrixFisher, _instance)
        new.concentration, new._rows = self.concentration.expand(*batch_shape, 3, 3), self._rows
        super(MatrixFisher, new).__init__(Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean E R, ``batch + (3, 3)``: inside the convex hull of the rotations, not a rotation."""
        mean: Tensor = torch.func.grad(lambda F: _log_normaliser(F).sum())(self.concentration)
        return mean

    @property
    def mode(self) -> Tensor:
        """The rotation nearest to F, by its proper singular value decomposition."""
        return SpecialOrthogonal().projection(self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return $\operatorname{tr} F^\top R - \log c(F)$, shape ``sample + batch``."""
        if self._validate_args:
            self._validate_sample(value)
        normaliser = self._rows.spread(_log_normaliser(self._rows.distinct))
        return (self.concentration * value).sum((-2, -1)) - normaliser

    def entropy(self) -> Tensor:
        r"""Return $-E \log p(R)$, shape ``batch``, relative to the uniform distribution."""
        return _log_normaliser(self.concentration) - (self.concentration * self.mean).sum((-2, -1))

    @torch.no_grad()
    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        if not torch.isfinite(self.concentration).all():
            raise ValueError("MatrixFisher.sample: F has entries that are not finite, expected finite ones.")
        quaternions = Bingham(quaternion_form(self.concentration), validate_args=False).sample(sample_shape)
        return rotation_of(quaternions)


def _log_normaliser(F: Tensor) -> Tensor:
    return log_bingham_normaliser(quaternion_form(F.double())).to(F.dtype)


def quaternion_form(F: Tensor) -> Tensor:
    r"""Return the symmetric B ``(..., 4, 4)`` with $\operatorname{tr} F^\top R = q^\top B q$ for the quaternion q of R.

    Examples:
        >>> quaternion_form(torch.eye(3)).diagonal().tolist()
        [3.0, -1.0, -1.0, -1.0]
    """
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in F.unbind(-2))
    rows = [
        [a + e + i, h - f, c - g, d - b],
        [h - f, a - e - i, b + d, c + g],
        [c - g, b + d, e - a - i, f + h],
        [d - b, c + g, f + h, i - a - e],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def rotation_of(quaternion: Tensor) -> Tensor:
    """Return the rotations ``(..., 3, 3)`` of unit quaternions ``(..., 4)``, real part first.

    Examples:
        >>> rotation_of(torch.tensor([0.0, 0.0, 0.0, 1.0])).diagonal().tolist()
        [-1.0, -1.0, 1.0]
    """
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)
