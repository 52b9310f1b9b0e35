"""The Bingham distribution of unit vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.bingham_envelope import sample_bingham
from pyro_manifold.distributions.bingham_normaliser import log_bingham_normaliser
from pyro_manifold.distributions.constraints import uniform_sphere
from pyro_manifold.distributions.matrix_angular_central_gaussian import check_square
from pyro_manifold.distributions.repeated_rows import repeated_rows


class Bingham(TorchDistribution):
    r"""Bingham distribution of unit vectors in $\mathbb{R}^n$, the same at x and -x: of axes.

    $$ p(x) = e^{x^\top A x} / {}_1F_1(1/2; n/2; A) $$

    The base measure is the normalised uniform distribution on the sphere: ``log_prob`` is 0 for A = 0. It is normalised
    and has first derivatives in A, so that A may be inferred; adding a multiple of the identity to A changes nothing.
    The constant is computed once for each distinct A: copies by ``expand`` and by an index, ``A[group]``, share it.
    `MatrixBingham` is the distribution of several orthonormal columns, not normalised.

    ``sample`` makes exact draws, by rejection from angular central Gaussian proposals.

    Args:
        A: ``(..., n, n)``, n ≥ 2; only its symmetric part counts. Gives dtype and device.

    Shapes: batch ``(...)``, event ``(n,)``.

    Raises:
        ValueError: if A is not a square floating-point matrix.
        RuntimeError: by ``sample``, if the acceptance rate is too low for draws in reasonable time.

    Source: Bingham 1974, Ann. Stat. 2, 1201–1225; Kume and Sei 2018, Stat. Comput. 28, 835–847, for the constant; Kent,
    Ganeiber and Mardia 2018, J. Comput. Graph. Stat. 27, 291–301, for draws.

    Examples:
        >>> d = Bingham(torch.diag(torch.tensor([1e6, 0.0, 0.0])))
        >>> d.sample().abs().round().tolist(), d.mode.abs().round().tolist()
        ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "A": torch_constraints.independent(torch_constraints.real, 2),
    }
    support = uniform_sphere

    def __init__(self, A: Tensor, *, validate_args: bool | None = None) -> None:
        if check_square("Bingham", "A", A) < 2:
            raise ValueError("Bingham: A is 1×1, expected n×n with n ≥ 2.")
        self.A, self._rows = A, repeated_rows(A, 2)
        super().__init__(A.shape[:-2], A.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> Bingham:
        new: Bingham = self._get_checked_instance(Bingham, _instance)
        new.A, new._rows = self.A.expand(*batch_shape, *self.A.shape[-2:]), self._rows
        super(Bingham, new).__init__(Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """Zeros: x and -x have the same density."""
        return torch.zeros_like(self.A[..., 0])

    @property
    def covariance_matrix(self) -> Tensor:
        r"""The second moment $E\,x x^\top$, ``batch + (n, n)``."""
        moment: Tensor = torch.func.grad(lambda A: log_bingham_normaliser(A).sum())(_symmetric(self.A))
        return _symmetric(moment)

    @property
    def mode(self) -> Tensor:
        """An eigenvector of the largest eigenvalue of A; its sign is arbitrary."""
        return torch.linalg.eigh(_symmetric(self.A))[1][..., -1]

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return $x^\top A x - \log {}_1F_1(1/2; n/2; A)$, shape ``sample + batch``."""
        if self._validate_args:
            self._validate_sample(value)
        quadratic = (value * (self.A @ value.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return quadratic - self._rows.spread(log_bingham_normaliser(_symmetric(self._rows.distinct)))

    def entropy(self) -> Tensor:
        r"""Return $-E \log p(x)$, shape ``batch``, relative to the uniform distribution."""
        A = _symmetric(self.A)
        return log_bingham_normaliser(A) - (A * self.covariance_matrix).sum((-2, -1))

    @torch.no_grad()
    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        if not torch.isfinite(self.A).all():
            raise ValueError("Bingham.sample: A has entries that are not finite, expected finite ones.")
        if not shape.numel():
            return self.A.new_empty(shape)
        A = self.A.reshape(-1, *self.A.shape[-2:])
        ones, zeros = A.new_ones(len(A), 1, 1), A.new_zeros(len(A), shape[-1], 1)
        draws, missing = sample_bingham(A, ones, zeros, Size(sample_shape).numel())
        if missing:
            raise RuntimeError(
                f"Bingham.sample: {missing} of {shape[:-1].numel()} draws found no accepted proposal: draw with OHMC "
                "from log_prob."
            )
        draws = draws.reshape(shape)
        return draws / draws.norm(dim=-1, keepdim=True)


def _symmetric(A: Tensor) -> Tensor:
    return (A + A.mT) / 2
