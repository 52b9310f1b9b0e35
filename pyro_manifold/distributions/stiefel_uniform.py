"""The uniform distribution on the Stiefel manifold, the set of n×p matrices with orthonormal columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.compiled import broadcast_shapes
from pyro_manifold.distributions import constraints
from pyro_manifold.distributions.on_manifold import OnStiefel
from pyro_manifold.manifolds import Stiefel, check_shape

Chart = Literal["polar", "householder"]


def stiefel_support(n: int, p: int, chart: Chart) -> Constraint:
    """Return the constraint to orthonormal columns with the transform to unconstrained space named by ``chart``."""
    if chart == "polar":
        return constraints.stiefel
    if chart == "householder":
        return constraints.householder_stiefel(n, p)
    raise ValueError(f"chart={chart!r}, expected 'polar' or 'householder'.")


class StiefelUniform(OnStiefel):
    r"""Uniform distribution of n×p matrices with orthonormal columns.

    The set of these matrices is the Stiefel manifold V(n, p), the distribution its normalised Haar measure: the only
    one under which QX is distributed as X for every orthogonal Q. It is the base measure of every density of this
    package on V(n, p), so ``log_prob`` is 0.

    Args:
        n: number of rows.
        p: number of columns, at most n.
        batch_shape: shape of a batch of independent matrices.
        chart: the transform from unconstrained space to the manifold that Pyro's NUTS, HMC and guides use for the site,
            ``"polar"`` (`PolarTransform`) or ``"householder"`` (`HouseholderTransform`). `OHMC` and `GHMC` move on the
            manifold itself and use neither.
        dtype: dtype of the draws; torch's default dtype if None.
        device: device of the draws; torch's default device if None.

    Shapes: event ``(n, p)``.

    Raises:
        ValueError: unless 1 ≤ p ≤ n.

    Source: Mezzadri 2007, arXiv math-ph/0609050 (draws by QR with positive diagonal).

    Examples:
        >>> U = StiefelUniform(4, 2).sample()
        >>> bool(torch.allclose(U.T @ U, torch.eye(2), atol=1e-5))
        True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        n: int,
        p: int,
        batch_shape: Size | tuple[int, ...] = (),
        *,
        chart: Chart = "polar",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        if not (isinstance(n, int) and isinstance(p, int)):
            raise ValueError(f"{name}: n={n!r}, p={p!r}, expected integers.")
        check_shape(n, p, name)
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"{name}: dtype={dtype}, expected torch.float32 or torch.float64.")
        self.n, self.p, self.chart = n, p, chart
        self.dtype, self.device = dtype, device
        self._support = stiefel_support(n, p, chart)
        if not isinstance(batch_shape, tuple | list):
            raise ValueError(f"{name}: batch_shape={batch_shape!r}, expected a tuple of sizes like (3,).")
        super().__init__(Size(batch_shape), Size((n, p)), validate_args=validate_args)

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"StiefelUniform(n={self.n}, p={self.p}{batch})"

    @torch_constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> Constraint:
        return self._support

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> StiefelUniform:
        return type(self)(
            self.n,
            self.p,
            Size(batch_shape),
            chart=self.chart,
            dtype=self.dtype,
            device=self.device,
            validate_args=self._validate_args,
        )

    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        with torch.no_grad():
            return Stiefel().random_point(*shape, dtype=self.dtype, device=self.device)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return zeros, ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        # A function of the value, so that NaN stays NaN and a site without likelihood has a gradient.
        zero = 0 * value.sum((-2, -1))
        return zero.expand(broadcast_shapes(zero.shape, self.batch_shape))
