"""The matrix Bingham–von Mises–Fisher distribution."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.compiled import broadcast_shapes
from pyro_manifold.distributions.bingham_envelope import sample_bingham
from pyro_manifold.distributions.matrix_angular_central_gaussian import check_square
from pyro_manifold.distributions.on_manifold import OnStiefel
from pyro_manifold.distributions.stiefel_uniform import Chart, stiefel_support
from pyro_manifold.manifolds import check_shape


class MatrixBinghamVonMisesFisher(OnStiefel):
    r"""Orthonormal matrices with density $p(X) \propto e^{\operatorname{tr}(C^\top X + B X^\top A X)}$.

    The log density has a linear part, as `MatrixLangevin`, and a quadratic one, as `MatrixBingham`.
    **``log_prob`` leaves out the normalising constant**: use it for X given A, B and C, not to infer them; it raises
    if one of them requires a gradient. The base measure is the uniform distribution (the normalised Haar measure). The
    mean has no closed form.

    ``sample`` makes exact draws, by rejection from two envelopes in turn:

    - angular central Gaussian, for the span of X and then for its columns one after the other. Without a linear part
      the acceptance rate hardly falls with the concentration, if the entries of B are of one sign and of similar size;
      for p ≥ 2 a linear part of size c reduces it by a factor of about $c^{-p(p-1)/4}$, and $2^{-p}$ for signs;
    - matrix Langevin, tangent at the mode, for a dominant linear part; p ≤ 6.

    Args:
        A: ``(..., n, n)``, of which only the symmetric part is used; gives dtype and device.
        B: ``(..., p, p)``, of which only the symmetric part is used.
        C: ``(..., n, p)``, n ≥ p.
        chart: the transform from unconstrained space to the manifold in Pyro's own inference, ``"polar"``
            (`PolarTransform`) or ``"householder"`` (`HouseholderTransform`).

    Shapes: batch: those of A, B and C broadcast; event ``(n, p)``.

    Raises:
        ValueError: if shapes or dtypes do not fit.
        NotImplementedError: by ``log_prob``, if A, B or C requires a gradient.
        RuntimeError: by ``sample``, if the acceptance rate is too low for draws in reasonable time.

    Source: Khatri and Mardia 1977 for the distribution; Kent, Ganeiber and Mardia 2018, J. Comput. Graph. Stat. 27,
    291–301, for its draws.

    Examples:
        >>> A, C = torch.diag(torch.tensor([0.0, 1e6, 0.0])), torch.tensor([[0.0], [9.0], [0.0]])
        >>> MatrixBinghamVonMisesFisher(A, torch.eye(1), C).sample().abs().round().tolist()
        [[0.0], [1.0], [0.0]]
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        name: torch_constraints.independent(torch_constraints.real, 2) for name in "ABC"
    }

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        chart: Chart = "polar",
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        n, p = check_square(name, "A", A), check_square(name, "B", B)
        shape = tuple(getattr(C, "shape", ()))
        if not isinstance(C, Tensor) or shape[-2:] != (n, p):
            raise ValueError(f"{name}: C has shape {shape}, expected (..., n, p) with n={n} of A and p={p} of B.")
        if not A.dtype == B.dtype == C.dtype:
            raise ValueError(f"{name}: A, B and C have dtypes {A.dtype}, {B.dtype} and {C.dtype}, expected one dtype.")
        check_shape(n, p, name)
        batch_shape = broadcast_shapes(A.shape[:-2], B.shape[:-2], C.shape[:-2])
        # Without this, antisymmetric parts of both would enter log_prob, and one triangle alone would enter draws.
        self.A, self.B, self.C, self.chart = (A + A.mT) / 2, (B + B.mT) / 2, C, chart
        self._support = stiefel_support(n, p, chart)
        super().__init__(batch_shape, Size((n, p)), validate_args=validate_args)

    @torch_constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> Constraint:
        return self._support

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> MatrixBinghamVonMisesFisher:
        new: MatrixBinghamVonMisesFisher = self._get_checked_instance(type(self), _instance)
        shape = Size(batch_shape)
        new.A, new.B, new.C = (m.expand(shape + m.shape[-2:]) for m in (self.A, self.B, self.C))
        new.chart, new._support = self.chart, self._support
        super(MatrixBinghamVonMisesFisher, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return $\operatorname{tr}(C^\top X + B X^\top A X)$, ``sample_shape + batch_shape``; unnormalised."""
        if self._validate_args:
            self._validate_sample(value)
        for name in "ABC":
            if getattr(self, name).requires_grad:
                raise NotImplementedError(
                    f"{type(self).__name__}.log_prob is not normalised in {name}, so inferring {name} would give a "
                    f"wrong posterior: give {name} a fixed value, or {name}.detach() for X given {name}."
                )
        linear = (self.C * value).sum((-2, -1))
        return linear + ((value @ self.B) * (self.A @ value)).sum((-2, -1))

    @torch.no_grad()
    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        name = type(self).__name__
        if not all(torch.isfinite(m).all() for m in (self.A, self.B, self.C)):
            raise ValueError(f"{name}.sample: A, B or C has entries that are not finite, expected finite ones.")
        if not shape.numel():
            return self.C.new_empty(shape)
        A, B, C = (
            m.expand(self.batch_shape + m.shape[-2:]).reshape(-1, *m.shape[-2:]) for m in (self.A, self.B, self.C)
        )
        draws, missing = sample_bingham(A, B, C, Size(sample_shape).numel())
        if missing:
            raise RuntimeError(
                f"{name}.sample: {missing} of {shape[:-2].numel()} draws found no accepted proposal; exact "
                "rejection is too slow for parameters this concentrated: draw with OHMC from log_prob."
            )
        return draws.reshape(shape)
