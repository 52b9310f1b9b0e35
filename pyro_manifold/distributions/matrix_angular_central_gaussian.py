"""The matrix angular central Gaussian distribution."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.compiled import by_matrix
from pyro_manifold.distributions.on_manifold import OnStiefel
from pyro_manifold.distributions.stiefel_uniform import Chart, stiefel_support
from pyro_manifold.manifolds import check_shape, polar_factor


class MatrixAngularCentralGaussian(OnStiefel):
    r"""Distribution of $X = Z(Z^\top Z)^{-1/2}$, the matrix with orthonormal columns nearest to a Gaussian Z.

    $$ p(X) = |\Sigma|^{-p/2}\, |X^\top \Sigma^{-1} X|^{-n/2} $$

    The columns of Z ``(n, p)`` are independent, each $N(0, \Sigma)$. The distribution does not change under
    $X \to XR$, R orthogonal, nor with the scale of Σ; it is a distribution of the subspace that X spans. The base
    measure of the density is the uniform distribution (the normalised Haar measure). ``log_prob`` is normalised and
    differentiable in Σ; draws are exact, and ``rsample`` differentiates through them.

    Args:
        covariance: Σ, ``(..., n, n)``, positive definite; gives dtype and device. Give it or ``scale_tril``.
        p: number of columns, at most n.
        scale_tril: lower triangular L with $\Sigma = LL^\top$.
        chart: the transform from unconstrained space to the manifold in Pyro's own inference, ``"polar"``
            (`PolarTransform`) or ``"householder"`` (`HouseholderTransform`).

    Shapes: batch ``(...)``, event ``(n, p)``.

    Raises:
        ValueError: unless exactly one of ``covariance`` and ``scale_tril`` is a square floating-point matrix and
            1 ≤ p ≤ n.
        torch.linalg.LinAlgError: if ``covariance`` is not positive definite.

    Source: Chikuse 1990, J. Multivariate Anal. 33, 265–274.

    Examples:
        >>> d = MatrixAngularCentralGaussian(torch.diag(torch.tensor([1e12, 1e12, 1.0])), 2)
        >>> d.sample()[2].abs().max().item() < 1e-3
        True
    """

    arg_constraints: ClassVar = {"scale_tril": torch_constraints.lower_cholesky}
    has_rsample = True

    def __init__(
        self,
        covariance: Tensor | None = None,
        p: int = 1,
        *,
        scale_tril: Tensor | None = None,
        chart: Chart = "polar",
        validate_args: bool | None = None,
    ) -> None:
        if (covariance is None) == (scale_tril is None):
            raise ValueError("MatrixAngularCentralGaussian: give exactly one of covariance and scale_tril.")
        name, matrix = ("covariance", covariance) if scale_tril is None else ("scale_tril", scale_tril)
        n = check_square("MatrixAngularCentralGaussian", name, matrix)
        if not isinstance(p, int):
            raise ValueError(f"MatrixAngularCentralGaussian: p={p!r}, expected an integer.")
        check_shape(n, p, "MatrixAngularCentralGaussian")
        if scale_tril is None:
            try:
                scale_tril = torch.linalg.cholesky(covariance)
            except torch.linalg.LinAlgError as error:
                # Samplers handle this error type as a divergence.
                raise type(error)(
                    "MatrixAngularCentralGaussian: covariance is not positive definite: add a small multiple of the "
                    "identity, or give scale_tril."
                ) from error
        self.scale_tril, self.p, self.chart = scale_tril, p, chart
        self._support = stiefel_support(n, p, chart)
        super().__init__(scale_tril.shape[:-2], Size((n, p)), validate_args=validate_args)

    @torch_constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> Constraint:
        return self._support

    @property
    def covariance(self) -> Tensor:
        return self.scale_tril @ self.scale_tril.mT

    @property
    def mean(self) -> Tensor:
        """Zero, ``batch_shape + (n, p)``: X and -X are equally likely."""
        return self.scale_tril.new_zeros(self._extended_shape())

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> MatrixAngularCentralGaussian:
        scale_tril = self.scale_tril.expand(Size(batch_shape) + self.scale_tril.shape[-2:])
        return type(self)(p=self.p, scale_tril=scale_tril, chart=self.chart, validate_args=self._validate_args)

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        noise = torch.randn(shape, dtype=self.scale_tril.dtype, device=self.scale_tril.device)
        return polar_factor(self.scale_tril @ noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, ``sample_shape + batch_shape``."""
        if self._validate_args:
            self._validate_sample(value)
        n, p = self.event_shape
        whitened = torch.linalg.solve_triangular(self.scale_tril, value, upper=False)
        log_volume = by_matrix(torch.linalg.slogdet, whitened.mT @ whitened)[1]
        log_scale = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -p * log_scale - n / 2 * log_volume


def check_square(owner: str, name: str, matrix: object) -> int:
    """Return the size of a square floating-point matrix ``(..., n, n)``; raise a ValueError for anything else."""
    shape = tuple(getattr(matrix, "shape", ()))
    if not isinstance(matrix, Tensor) or len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{owner}: {name} has shape {shape}, expected a tensor (..., m, m).")
    if matrix.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{owner}: {name} has dtype {matrix.dtype}, expected float32 or float64.")
    return shape[-1]
