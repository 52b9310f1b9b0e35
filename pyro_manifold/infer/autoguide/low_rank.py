"""Gaussian guides whose covariance is low-rank plus diagonal, with an orthonormal factor."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.constraints import softplus_positive
from pyro.infer.autoguide import AutoContinuous, init_to_median
from pyro.nn import PyroParam
from torch import Tensor, nn
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions import constraints
from pyro_manifold.infer.autoguide.identified import IdentifiedCovariance, identify
from pyro_manifold.infer.autoguide.low_rank_affine import LowRankAffineTransform
from pyro_manifold.manifolds import Stiefel


class _AutoOrthonormalLowRank(AutoContinuous):
    """The Gaussian N(loc, W Wᵀ + diag(scale²)) with W = cov_factor · factor_scale; a subclass says which scales."""

    scale_constraint: Constraint = softplus_positive
    factor_constraint: Constraint

    def __init__(
        self,
        model: Callable[..., Any],
        rank: int | None = None,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        owner = type(self).__name__
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 0):
            raise ValueError(
                f"{owner}: rank={rank!r}, expected a whole number ≥ 0 (0 is the mean field), or None for about "
                "√(latent dimensions)."
            )
        _check_positive(owner, "init_scale", init_scale)
        self.rank = None if rank is None else int(rank)
        self._init_scale = float(init_scale)
        super().__init__(model, init_loc_fn=init_loc_fn)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        if self.rank is None:
            self.rank = round(self.latent_dim**0.5)
        if self.rank > self.latent_dim:
            raise ValueError(
                f"{type(self).__name__}: rank={self.rank}, but the model has {self.latent_dim} latent dimensions, and "
                f"no more than {self.latent_dim} columns can be orthonormal; give a smaller rank."
            )
        self.loc = nn.Parameter(self._init_loc())
        part = 0.5**0.5 * self._init_scale  # the factor's scale and the diagonal's have equal shares
        self.scale = PyroParam(self.loc.new_full((self.latent_dim,), part), constraint=self.scale_constraint)
        if self.rank:
            factor = Stiefel().random_point(self.latent_dim, self.rank, dtype=self.loc.dtype, device=self.loc.device)
            self.cov_factor = PyroParam(factor, constraint=self.factor_constraint)
            self._setup_factor_scale(self.loc.new_full((self.rank,), part))

    @abstractmethod
    def _setup_factor_scale(self, initial: Tensor) -> None:
        """Give the guide its ``factor_scale``, from an initial value for each column."""

    def _scaled_factor(self) -> Tensor:
        """W, ``(latent_dim, rank)``."""
        if not self.rank:
            return self.loc.new_zeros(self.latent_dim, 0)
        factor = self.cov_factor
        if factor.shape != (self.latent_dim, self.rank):
            raise ValueError(
                f"{type(self).__name__}: cov_factor has shape {tuple(factor.shape)}, expected "
                f"{(self.latent_dim, self.rank)} for {self.latent_dim} latent dimensions and rank {self.rank}: the "
                "parameters that were loaded belong to another rank or model."
            )
        return factor * self.factor_scale

    def get_base_dist(self) -> dist.Distribution:
        """N(0, I) in ``latent_dim`` dimensions."""
        return dist.Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> LowRankAffineTransform:
        """The affine map from `get_base_dist` to the posterior, as `NeuTraReparam` takes it."""
        return LowRankAffineTransform(self.loc, self._scaled_factor(), self.scale, cache_size=1)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draw from `get_posterior` through `get_transform`.

        With the cached noise of a draw, log q is a function of the noise minus a log determinant: nothing of Woodbury's
        formula is left but one Cholesky root, and the entropy's gradient carries no Monte Carlo error.
        """
        posterior = dist.TransformedDistribution(self.get_base_dist(), self.get_transform())
        return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer={"is_auxiliary": True})

    def get_posterior(self, *args: Any, **kwargs: Any) -> dist.Distribution:
        """The Gaussian over all latent coordinates."""
        if not self.rank:
            return dist.Normal(self.loc, self.scale).to_event(1)
        return dist.LowRankMultivariateNormal(self.loc, self._scaled_factor(), self.scale.square())

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.loc, (self.scale.square() + self._scaled_factor().square().sum(-1)).sqrt()

    def identified_covariance(self) -> IdentifiedCovariance:
        """Factor, scales and shares of variance in a form that does not depend on the fit's initial values.

        Raises:
            RuntimeError: before the guide has seen the model's arguments.
        """
        if self.prototype_trace is None:
            raise RuntimeError(
                f"{type(self).__name__}.identified_covariance: the guide knows no sites yet; call it, or SVI.step, "
                "with the model's arguments first."
            )
        if self.rank and self.latent_dim <= 2 * self.rank:
            warnings.warn(
                f"{type(self).__name__}.identified_covariance: {self.latent_dim} latent dimensions with rank "
                f"{self.rank} leave the split of the covariance into factor and diagonal open; it is determined from "
                f"{2 * self.rank + 1} dimensions on.",
                stacklevel=2,
            )
        if self.rank:
            factor, factor_scale = self.cov_factor, self.factor_scale
        else:
            factor, factor_scale = self._scaled_factor(), self.loc.new_zeros(0)
        return identify(factor, factor_scale, self.scale, self._unconstrained_shapes)


class AutoStiefelLowRankMultivariateNormal(_AutoOrthonormalLowRank):
    r"""A Gaussian over all latent variables with orthonormal factor and a scale for each of its columns.

    .. math::
        \theta = \mu + B(c \circ z) + d \circ \varepsilon, \qquad
        \Sigma = B\,\mathrm{diag}(c^2)\,B^\top + \mathrm{diag}(d^2), \qquad B^\top B = I,

    z and ε standard normal, in Pyro's unconstrained space. The family is that of `AutoLowRankMultivariateNormal`, all
    covariances that are diagonal plus low rank. Its free factor can be turned by any rotation; the columns of B are
    determined up to order and sign, where the c differ and Σ determines the split into its two parts (see
    `IdentifiedCovariance`). Densities by Woodbury's formula: time and memory O(m·rank²) for m dimensions. Zhou, Gao,
    Tran & Gerlach, arXiv 1902.03718.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``cov_factor`` B, ``(m, rank)``, with the constraint
    `constraints.stiefel` (orthonormal columns); ``factor_scale`` c > 0, ``(rank,)``. dtype and device are the model's.
    The optimisers of `pyro_manifold.optim` keep B orthonormal at every step; others move an unconstrained matrix, to
    which B is the nearest orthonormal one.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column.

    Raises:
        ValueError: for a rank or scale out of range, and for loaded parameters of another shape.

    Example:
        >>> import pyro
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> from pyro_manifold.optim import RiemannianAdam
        >>> def model():
        ...     return pyro.sample("x", dist.Normal(torch.arange(4.0), 1.0).to_event(1))
        >>> guide = AutoStiefelLowRankMultivariateNormal(model, rank=1)
        >>> svi = SVI(model, guide, RiemannianAdam({"lr": 0.05}), Trace_ELBO())
        >>> losses = [svi.step() for _ in range(10)]
        >>> guide.identified_covariance().directions["x"].shape
        torch.Size([1, 4])
    """

    factor_constraint = constraints.stiefel

    def _setup_factor_scale(self, initial: Tensor) -> None:
        self.factor_scale = PyroParam(initial, constraint=self.scale_constraint)


class AutoGrassmannLowRankMultivariateNormal(_AutoOrthonormalLowRank):
    r"""A Gaussian over all latent variables with an orthonormal factor and one scale for all of its columns.

    .. math::
        \theta = \mu + sBz + d \circ \varepsilon, \qquad
        \Sigma = s^2 BB^\top + \mathrm{diag}(d^2), \qquad B^\top B = I .

    Σ does not change when B becomes BR for an orthogonal R: only the subspace that its columns span matters (the set of
    these is the Grassmann manifold). A smaller family than `AutoStiefelLowRankMultivariateNormal`, for the same cost.
    Zhou, Gao, Tran & Gerlach, arXiv 1902.03718, fix s = 1, which suits coordinates on the scale of their prior.

    Parameters: as there, with ``cov_factor`` in `constraints.grassmann` and a scalar ``factor_scale``.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        factor_scale: s, held fixed; None learns it. The paper's family is ``factor_scale=1.0``.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column (unless s is given).

    Raises:
        ValueError: for a rank or scale out of range, and for loaded parameters of another shape.

    Example:
        >>> import pyro
        >>> def model():
        ...     return pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        >>> guide = AutoGrassmannLowRankMultivariateNormal(model, rank=2, factor_scale=1.0)
        >>> guide()["x"].shape, guide.get_posterior().covariance_matrix.shape
        (torch.Size([4]), torch.Size([4, 4]))
    """

    factor_constraint = constraints.grassmann

    def __init__(
        self,
        model: Callable[..., Any],
        rank: int | None = None,
        factor_scale: float | None = None,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        if factor_scale is not None:
            _check_positive(type(self).__name__, "factor_scale", factor_scale)
        self._fixed_factor_scale = factor_scale
        super().__init__(model, rank, init_loc_fn, init_scale)

    def _setup_factor_scale(self, initial: Tensor) -> None:
        if self._fixed_factor_scale is None:
            self.factor_scale = PyroParam(initial[0].clone(), constraint=self.scale_constraint)
        else:
            self.register_buffer("factor_scale", self.loc.new_tensor(self._fixed_factor_scale))


def _check_positive(owner: str, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{owner}: {name}={value!r}, expected a finite number > 0.")
