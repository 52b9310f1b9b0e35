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
from pyro_manifold.infer.autoguide.identified import IdentifiedCovariance, canonical_form, identify
from pyro_manifold.infer.autoguide.low_rank_affine import LowRankAffineTransform
from pyro_manifold.infer.autoguide.path_derivative import PathDerivative
from pyro_manifold.manifolds import Stiefel


class _AutoLowRank(AutoContinuous):
    """The Gaussian N(loc, W Wᵀ + diag(scale²)), W = cov_factor · factor_scale; a subclass says in which parameters."""

    scale_constraint: Constraint = softplus_positive

    def __init__(
        self,
        model: Callable[..., Any],
        rank: int | None = None,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
        path_derivative: bool = True,
    ) -> None:
        owner = type(self).__name__
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 0):
            raise ValueError(
                f"{owner}: rank={rank!r}, expected a whole number ≥ 0 (0 is the mean field), or None for about "
                "√(latent dimensions)."
            )
        if not isinstance(path_derivative, bool):
            raise ValueError(f"{owner}: path_derivative={path_derivative!r}, expected True or False.")
        _check_positive(owner, "init_scale", init_scale)
        self.rank = None if rank is None else int(rank)
        self.path_derivative = path_derivative
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
            self._setup_factor(factor, part)

    @abstractmethod
    def _setup_factor(self, factor: Tensor, scale: float) -> None:
        """Give the guide its parameters for W, from orthonormal columns and a scale for all of them."""

    @abstractmethod
    def _scaled_factor(self) -> Tensor:
        """W, ``(latent_dim, rank)``, of a guide whose rank is not 0."""

    @abstractmethod
    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        """Orthonormal B and scales c with W Wᵀ = B diag(c²) Bᵀ."""

    def _checked_factor(self) -> Tensor:
        if not self.rank:
            return self.loc.new_zeros(self.latent_dim, 0)
        factor = self._scaled_factor()
        if factor.shape != (self.latent_dim, self.rank):
            raise ValueError(
                f"{type(self).__name__}: the factor has shape {tuple(factor.shape)}, expected "
                f"{(self.latent_dim, self.rank)} for {self.latent_dim} latent dimensions and rank {self.rank}: the "
                "parameters that were loaded belong to another rank or model."
            )
        return factor

    def get_base_dist(self) -> dist.Distribution:
        """N(0, I) in ``latent_dim`` dimensions."""
        return dist.Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> LowRankAffineTransform:
        """The affine map from `get_base_dist` to the posterior, as `NeuTraReparam` takes it."""
        return LowRankAffineTransform(self.loc, self._checked_factor(), self.scale, cache_size=1)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draw μ + Wz + d∘ε, with the gradient of the entropy that ``path_derivative`` names.

        The closed form comes by way of `get_transform`: with the cached noise of a draw, log q is a function of the
        noise minus a log determinant, so the entropy's gradient carries no Monte Carlo error.
        """
        # A mean field seldom is the posterior, so it keeps the closed form, which widens a narrow start faster.
        if self.path_derivative and self.rank:
            parameters = self.loc, self._checked_factor(), self.scale
            frozen = (parameter.detach() for parameter in parameters)
            posterior = PathDerivative(_gaussian(*parameters), _gaussian(*frozen))
        else:
            posterior = dist.TransformedDistribution(self.get_base_dist(), self.get_transform())
        return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer={"is_auxiliary": True})

    def get_posterior(self, *args: Any, **kwargs: Any) -> dist.TorchDistribution:
        """The Gaussian over all latent coordinates."""
        return _gaussian(self.loc, self._checked_factor(), self.scale)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.loc, (self.scale.square() + self._checked_factor().square().sum(-1)).sqrt()

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
        factor, factor_scale = self._canonical_form() if self.rank else (self._checked_factor(), self.loc.new_zeros(0))
        return identify(factor, factor_scale, self.scale, self._unconstrained_shapes)


class AutoStiefelLowRankMultivariateNormal(_AutoLowRank):
    r"""A Gaussian over all latent variables with orthonormal factor and a scale for each of its columns.

    .. math::
        \theta = \mu + B(c \circ z) + d \circ \varepsilon, \qquad
        \Sigma = B\,\mathrm{diag}(c^2)\,B^\top + \mathrm{diag}(d^2), \qquad B^\top B = I,

    z and ε standard normal, in Pyro's unconstrained space. The family is that of `AutoLowRankMultivariateNormal`, all
    covariances that are diagonal plus low rank. The columns of B are determined up to order and sign, where the c
    differ and Σ determines the split into its two parts (see `IdentifiedCovariance`). Densities by Woodbury's formula:
    time and memory O(m·rank²) for m dimensions. Zhou, Gao, Tran & Gerlach, arXiv 1902.03718, for the family.

    Steps are taken in :math:`A = W / d` (row by row) with :math:`W = B\,\mathrm{diag}(c)`: in units of d, so that the
    scales of coordinates do not matter. B and c are read from the singular value decomposition of W, its *canonical
    form*. A and AR are one covariance for every orthogonal R, so A stands for :math:`AA^\top`, a matrix of fixed rank,
    and the distance of two of these is that of their A, turned to agree (Journée, Bach, Absil & Sepulchre 2010). The
    gradient of a function of :math:`AA^\top` is orthogonal to all turns by an R, so the gradient step in A is that of
    this geometry.
    `AutoProductStiefelLowRankMultivariateNormal` has B and c as parameters of their own, and loses columns.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``relative_factor`` A, ``(m, rank)``. Read from them,
    detached: ``cov_factor`` B, ``(m, rank)``, and ``factor_scale`` c ≥ 0, ``(rank,)``, falling. dtype and device are
    the model's. Any optimiser does.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column.
        path_derivative: the entropy's gradient by the draws alone (see `PathDerivative`): the noise of the ELBO's
            gradient vanishes where the guide fits. False takes the entropy in closed form, as rank 0 always does: less
            noise while the guide is much narrower than the posterior, or where it never fits.

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

    def _setup_factor(self, factor: Tensor, scale: float) -> None:
        self.relative_factor = nn.Parameter(factor)  # of the same scale as the diagonal

    def _scaled_factor(self) -> Tensor:
        return self.relative_factor * self.scale.unsqueeze(-1)

    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        return canonical_form(self._checked_factor().detach())

    @property
    def cov_factor(self) -> Tensor:
        """B, ``(m, rank)``, orthonormal columns in falling order of ``factor_scale``."""
        return self._canonical_form()[0]

    @property
    def factor_scale(self) -> Tensor:
        """Standard deviations c ≥ 0 along the columns, ``(rank,)``."""
        return self._canonical_form()[1]


class _AutoOrthonormalLowRank(_AutoLowRank):
    """B is a parameter with a constraint, and scales are another."""

    factor_constraint: Constraint

    def _setup_factor(self, factor: Tensor, scale: float) -> None:
        self.cov_factor = PyroParam(factor, constraint=self.factor_constraint)
        self._setup_factor_scale(factor.new_full((factor.shape[-1],), scale))

    @abstractmethod
    def _setup_factor_scale(self, initial: Tensor) -> None:
        """Give the guide its ``factor_scale``, from an initial value for each column."""

    def _scaled_factor(self) -> Tensor:
        return self.cov_factor * self.factor_scale

    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        return self.cov_factor, self.factor_scale


class AutoProductStiefelLowRankMultivariateNormal(_AutoOrthonormalLowRank):
    r"""The family of `AutoStiefelLowRankMultivariateNormal`, with B and c as parameters of their own.

    B moves along the Stiefel manifold (the matrices with orthonormal columns), as in Zhou, Gao, Tran & Gerlach (arXiv
    1902.03718), and every entry of c by itself. The gradient of column k of B is :math:`c_k^2` times a matrix applied
    to it, so a column that starts across a long direction shrinks and then hardly turns, and columns with nearly
    equal c hardly turn into each other's place. In thousands of dimensions without a long direction it is the better
    one nevertheless, because a scale that is one number falls fast.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``cov_factor`` B, ``(m, rank)``, with the constraint
    `constraints.stiefel` (orthonormal columns); ``factor_scale`` c > 0, ``(rank,)``. The optimisers of
    `pyro_manifold.optim` keep B orthonormal at every step; others move an unconstrained matrix, to which B is the
    nearest orthonormal one.

    Args, errors: as there.

    Example:
        >>> import pyro
        >>> def model():
        ...     return pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        >>> guide = AutoProductStiefelLowRankMultivariateNormal(model, rank=2)
        >>> guide()["x"].shape, guide.cov_factor.shape, guide.factor_scale.shape
        (torch.Size([4]), torch.Size([4, 2]), torch.Size([2]))
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

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``cov_factor`` B, ``(m, rank)``, in
    `constraints.grassmann`; ``factor_scale`` s > 0, a scalar. The optimisers of `pyro_manifold.optim` keep B
    orthonormal at every step; others move an unconstrained matrix, to which B is the nearest orthonormal one.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        factor_scale: s, held fixed; None learns it. The paper's family is ``factor_scale=1.0``.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column (unless s is given).
        path_derivative: as there.

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
        path_derivative: bool = True,
    ) -> None:
        if factor_scale is not None:
            _check_positive(type(self).__name__, "factor_scale", factor_scale)
        self._fixed_factor_scale = factor_scale
        super().__init__(model, rank, init_loc_fn, init_scale, path_derivative)

    def _setup_factor_scale(self, initial: Tensor) -> None:
        if self._fixed_factor_scale is None:
            self.factor_scale = PyroParam(initial[0].clone(), constraint=self.scale_constraint)
        else:
            self.register_buffer("factor_scale", self.loc.new_tensor(self._fixed_factor_scale))


def _check_positive(owner: str, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{owner}: {name}={value!r}, expected a finite number > 0.")


def _gaussian(loc: Tensor, factor: Tensor, scale: Tensor) -> dist.TorchDistribution:
    if not factor.shape[-1]:
        return dist.Normal(loc, scale).to_event(1)
    return dist.LowRankMultivariateNormal(loc, factor, scale.square())
