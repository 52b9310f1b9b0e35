"""The matrix Langevin (matrix von Mises–Fisher) distribution."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints as torch_constraints
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.langevin_normaliser import langevin_mean, log_langevin_normaliser
from pyro_manifold.distributions.on_manifold import OnStiefel
from pyro_manifold.distributions.rejection import Proposals, sample_by_rejection
from pyro_manifold.distributions.repeated_rows import repeated_rows
from pyro_manifold.distributions.sphere_mean import log_sphere_mean
from pyro_manifold.distributions.stiefel_uniform import Chart, stiefel_support
from pyro_manifold.distributions.transforms import HouseholderTransform
from pyro_manifold.distributions.von_mises_fisher import sample_von_mises_fisher
from pyro_manifold.manifolds import check_shape, rotate_rows

_ROUNDS_WITHOUT_ACCEPTANCE = 20


class MatrixLangevin(OnStiefel):
    r"""Matrix Langevin (matrix von Mises–Fisher) distribution of n×p matrices with orthonormal columns.

    $$ p(X) = e^{\operatorname{tr} F^\top X} / {}_0F_1(n/2; F^\top F/4) $$

    The mode is $F(F^\top F)^{-1/2}$, the matrix with orthonormal columns nearest to F; the singular values of F
    are the concentrations along its columns. p = 1 is the von Mises–Fisher distribution.

    The base measure is the uniform distribution (the normalised Haar measure). ``log_prob`` is normalised and has
    derivatives in F, of every order for p ≤ 2 and two for p ≥ 3, so F may depend on sites and parameters. The constant
    is exact for p ≤ 2 and an approximation for p ≥ 3 with errors listed at
    `pyro_manifold.distributions.langevin_normaliser.log_langevin_normaliser`; so is ``mean``, its derivative.

    The constant is computed once for each distinct F, not for each datum: copies by ``expand`` (in a plate, or of the
    tensor F itself) and by an index, ``MatrixLangevin(F[group])``, share it. If F is fixed, construct the
    distribution outside the model: the constant is then computed only once.

    ``sample`` makes exact draws: columns are proposed one after the other, each von Mises–Fisher and orthogonal to
    those before, and rejection corrects for the normalising constants that this leaves out (Hoff 2009, J. Comput.
    Graph. Stat. 18, section 2.2). The acceptance rate does not fall with the concentration; it falls with p, roughly as
    $2^{-p(p-1)/4}$ when all concentrations are equal and large.

    Args:
        concentration: F, ``(..., n, p)``, n ≥ p; gives dtype and device.
        chart: the transform from unconstrained space to the manifold in Pyro's own inference, ``"polar"``
            (`PolarTransform`) or ``"householder"`` (`HouseholderTransform`).

    Shapes: batch ``(...)``, event ``(n, p)``.

    Raises:
        ValueError: if F is not a floating-point matrix with n ≥ p.
        NotImplementedError: if a third derivative of ``log_prob`` in F is requested and p ≥ 3.
        RuntimeError: by ``sample``, if the acceptance rate is too low for draws in reasonable time.

    Examples:
        >>> d = MatrixLangevin(1e6 * torch.eye(3, 2))
        >>> d.sample().abs().round().tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """

    arg_constraints: ClassVar = {"concentration": torch_constraints.independent(torch_constraints.real, 2)}

    def __init__(
        self,
        concentration: Tensor,
        *,
        chart: Chart = "polar",
        validate_args: bool | None = None,
    ) -> None:
        if not torch.is_tensor(concentration) or concentration.dim() < 2:
            raise ValueError(
                f"MatrixLangevin: F has shape {tuple(getattr(concentration, 'shape', ()))}, "
                "expected a tensor (..., n, p); for unit vectors pass F.unsqueeze(-1)."
            )
        if concentration.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"MatrixLangevin: F has dtype {concentration.dtype}, expected float32 or float64.")
        n, p = concentration.shape[-2:]
        check_shape(n, p, "MatrixLangevin")
        self.concentration, self.chart = concentration, chart
        self._support = stiefel_support(n, p, chart)
        self._find_copies()
        super().__init__(concentration.shape[:-2], concentration.shape[-2:], validate_args=validate_args)

    @torch_constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> Constraint:
        return self._support

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> MatrixLangevin:
        new: MatrixLangevin = self._get_checked_instance(MatrixLangevin, _instance)
        new.concentration, new.chart = self.concentration.expand(*batch_shape, *self.event_shape), self.chart
        shape = new.concentration.shape[:-2]
        new._support = self._support
        new._rows, new._log_normaliser, new._version = self._rows, self._log_normaliser, self._version
        super(MatrixLangevin, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean E X, ``batch_shape + (n, p)``: inside the manifold's convex hull, not on the manifold."""
        return self._rows.spread(langevin_mean(self._rows.distinct)).expand_as(self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return $\operatorname{tr} F^\top X - \log {}_0F_1(n/2; F^\top F/4)$, shape ``sample + batch``."""
        if self._validate_args:
            self._validate_sample(value)
        if _version(self.concentration) != self._version:
            self._find_copies()
        normaliser = self._log_normaliser
        if normaliser is None:
            normaliser = self._compute_log_normaliser()
        return (self.concentration * value).sum((-2, -1)) - normaliser

    def _find_copies(self) -> None:
        """Find copies in F, and compute the normalising constant in advance if F does not require a gradient."""
        self._rows = repeated_rows(self.concentration, 2)
        self._version = _version(self.concentration)
        # With a gradient the constant belongs to the graph of one log_prob, not to the distribution.
        self._log_normaliser = None if self.concentration.requires_grad else self._compute_log_normaliser()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _version=_version(state["concentration"]))

    def _compute_log_normaliser(self) -> Tensor:
        """Compute the log normalising constant once for each distinct F; it broadcasts to the batch shape."""
        return self._rows.spread(log_langevin_normaliser(self._rows.distinct))

    @torch.no_grad()
    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        if not torch.isfinite(self.concentration).all():
            raise ValueError("MatrixLangevin.sample: F has entries that are not finite, expected finite ones.")
        if not shape.numel():
            return self.concentration.new_empty(shape)
        concentration = self.concentration.reshape(-1, *self.event_shape)
        draws, missing = sample_langevin(concentration, Size(sample_shape).numel())
        if missing.any():
            raise RuntimeError(
                f"MatrixLangevin.sample: {int(missing.sum())} of {missing.numel()} draws found no accepted proposal; "
                f"exact rejection is too slow for p={shape[-1]} columns this concentrated: draw with OHMC, started "
                "by init_to_value at the polar factor of F."
            )
        return draws.reshape(shape)


def _version(concentration: Tensor) -> int:
    """Return the version counter of a tensor; 0 for tensors of inference mode, which have none."""
    return 0 if concentration.is_inference() else concentration._version


@torch.no_grad()
def sample_langevin(concentration: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return draws ``(count, batch, n, p)`` for F ``(batch, n, p)``, and a mask of failed draws ``(count, batch)``."""
    left, singular, right = torch.linalg.svd(concentration, full_matrices=False)
    # Columns in the order of decreasing concentration: each is drawn given those before it.
    columns = left * singular.unsqueeze(-2)

    def propose(pending: Tensor, repeats: int) -> Proposals:
        return _propose(columns[pending % len(columns)].expand(repeats, -1, -1, -1))

    empty = columns.new_empty(count * len(columns), *columns.shape[1:])
    draws, pending = sample_by_rejection(propose, empty, _ROUNDS_WITHOUT_ACCEPTANCE)
    missing = torch.zeros(len(draws), dtype=torch.bool, device=draws.device)
    missing[pending] = True
    return draws.reshape(count, *columns.shape) @ right, missing.reshape(count, -1)


def _propose(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Propose matrices column by column, with their log acceptance probabilities.

    The inverse rotation of each direction maps the complement of the columns so far to the last rows,
    so that the next column is von Mises–Fisher in one dimension less, and the directions together are
    the unconstrained coordinates of the draw in `HouseholderTransform`.
    """
    n, p = columns.shape[-2:]
    directions = []
    log_ratio = torch.zeros(columns.shape[:-2], dtype=torch.float64, device=columns.device)
    remaining = columns
    for k in range(p):
        parameter = remaining[..., k:, k]
        if k:
            reached = log_sphere_mean(parameter.norm(dim=-1), n - k)
            log_ratio += reached - log_sphere_mean(columns[..., k].norm(dim=-1), n - k)
        directions.append(sample_von_mises_fisher(parameter))
        remaining = rotate_rows(remaining, k, directions[-1], inverse=True)
    return HouseholderTransform(n, p)(torch.cat(directions, -1)), log_ratio
