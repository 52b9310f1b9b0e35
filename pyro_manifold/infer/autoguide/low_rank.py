"""Gaussian guides whose covariance is low-rank plus diagonal, with an orthonormal factor."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
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

from pyro_manifold.density import arguments_by_name, explained, refuse_for_guides, started
from pyro_manifold.distributions import constraints
from pyro_manifold.infer.autoguide.identified import IdentifiedCovariance, canonical_form, identify
from pyro_manifold.infer.autoguide.low_rank_affine import LowRankAffineTransform
from pyro_manifold.infer.autoguide.path_derivative import PathDerivative
from pyro_manifold.manifolds import Stiefel


class _AutoLowRank(AutoContinuous):
    """Gaussian guide N(loc, W Wᵀ + diag(scale²)), W = cov_factor · factor_scale; subclasses parametrise W."""

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
                f"{owner}: rank={rank!r}, expected an integer ≥ 0 (0 is the mean field), or None for about √(latent "
                "dimensions)."
            )
        if not isinstance(path_derivative, bool):
            raise ValueError(f"{owner}: path_derivative={path_derivative!r}, expected True or False.")
        _check_positive(owner, "init_scale", init_scale)
        self.rank = None if rank is None else int(rank)
        self.path_derivative = path_derivative
        self._init_scale = float(init_scale)
        super().__init__(model, init_loc_fn=init_loc_fn)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        with explained(arguments_by_name(self.model, args, kwargs)), started(self):
            super()._setup_prototype(*args, **kwargs)
        try:
            refuse_for_guides(partial(self.model, *args, **kwargs), self.prototype_trace.nodes)
        except ValueError:
            self.prototype_trace: Any = None  # without which the next call would not raise
            raise
        if self.rank is None:
            self.rank = round(self.latent_dim**0.5)
        if self.rank > self.latent_dim:
            raise ValueError(
                f"{type(self).__name__}: rank={self.rank}, but the model has {self.latent_dim} latent dimensions, "
                f"and at most {self.latent_dim} columns can be orthonormal: choose a smaller rank."
            )
        self.loc = nn.Parameter(self._init_loc())
        part = 0.5**0.5 * self._init_scale  # equal shares of the variance for factor and diagonal
        self.scale = PyroParam(self.loc.new_full((self.latent_dim,), part), constraint=self.scale_constraint)
        if self.rank:
            factor = Stiefel().random_point(self.latent_dim, self.rank, dtype=self.loc.dtype, device=self.loc.device)
            self._setup_factor(factor, part)

    @abstractmethod
    def _setup_factor(self, factor: Tensor, scale: float) -> None:
        """Register the parameters of W, initialised with orthonormal columns and one scale for all of them."""

    @abstractmethod
    def _scaled_factor(self) -> Tensor:
        """Return W, ``(latent_dim, rank)``; called only if the rank is not 0."""

    @abstractmethod
    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        """Return orthonormal B and scales c with W Wᵀ = B diag(c²) Bᵀ."""

    def _checked_factor(self) -> Tensor:
        if not self.rank:
            return self.loc.new_zeros(self.latent_dim, 0)
        factor = self._scaled_factor()
        if factor.shape != (self.latent_dim, self.rank):
            raise ValueError(
                f"{type(self).__name__}: the factor has shape {tuple(factor.shape)}, expected "
                f"{(self.latent_dim, self.rank)} for {self.latent_dim} latent dimensions and rank {self.rank}: load "
                "parameters of the same rank and model."
            )
        return factor

    def get_base_dist(self) -> dist.Distribution:
        """Return N(0, I) in ``latent_dim`` dimensions."""
        return dist.Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> LowRankAffineTransform:
        """Return the affine map from `get_base_dist` to the posterior, in the form required by `NeuTraReparam`."""
        return LowRankAffineTransform(self.loc, self._checked_factor(), self.scale, cache_size=1)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draw μ + Wz + d∘ε; ``path_derivative`` selects the gradient estimator of the entropy.

        The closed form is obtained through `get_transform`: with the cached noise of a draw, log q is a function of
        the noise minus a log determinant, so that the gradient of the entropy has no Monte Carlo error.
        """
        # A mean-field guide rarely fits exactly, so it uses the closed form, which widens a narrow initial guide
        # faster.
        if self.path_derivative and self.rank:
            parameters = self.loc, self._checked_factor(), self.scale
            frozen = (parameter.detach() for parameter in parameters)
            posterior = PathDerivative(_gaussian(*parameters), _gaussian(*frozen))
        else:
            posterior = dist.TransformedDistribution(self.get_base_dist(), self.get_transform())
        return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer={"is_auxiliary": True})

    def get_posterior(self, *args: Any, **kwargs: Any) -> dist.TorchDistribution:
        """Return the Gaussian over all latent coordinates."""
        return _gaussian(self.loc, self._checked_factor(), self.scale)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.loc, (self.scale.square() + self._checked_factor().square().sum(-1)).sqrt()

    def identified_covariance(self) -> IdentifiedCovariance:
        """Return factor, scales and shares of variance in a form that does not depend on the initial values of the fit.

        Raises:
            RuntimeError: if the guide has not yet been called with the model's arguments.
        """
        if self.prototype_trace is None:
            raise RuntimeError(
                f"{type(self).__name__}.identified_covariance: the guide has no sites yet: call it, or SVI.step, "
                "with the model's arguments first."
            )
        if self.rank and self.latent_dim <= 2 * self.rank:
            warnings.warn(
                f"{type(self).__name__}.identified_covariance: with {self.latent_dim} latent dimensions and rank "
                f"{self.rank} the split of the covariance into factor and diagonal is not identified: use a smaller "
                f"rank, or at least {2 * self.rank + 1} dimensions.",
                stacklevel=2,
            )
        factor, factor_scale = self._canonical_form() if self.rank else (self._checked_factor(), self.loc.new_zeros(0))
        return identify(factor, factor_scale, self.scale, self._unconstrained_shapes)


class AutoStiefelLowRankMultivariateNormal(_AutoLowRank):
    r"""Gaussian guide over all latent variables with an orthonormal factor and a scale for each of its columns.

    $$
    \theta = \mu + B(c \circ z) + d \circ \varepsilon, \qquad
    \Sigma = B\,\mathrm{diag}(c^2)\,B^\top + \mathrm{diag}(d^2), \qquad B^\top B = I,
    $$

    z and ε standard normal, in Pyro's unconstrained space. The family is that of `AutoLowRankMultivariateNormal`, all
    covariances that are diagonal plus low rank. The columns of B are identified up to order and sign, provided that
    the c differ and that Σ determines the split into its two parts (see `IdentifiedCovariance`). Densities are
    computed by Woodbury's formula, in O(m·rank²) time and memory for m dimensions.

    The optimised parameter is $A = W / d$ (row by row) with $W = B\,\mathrm{diag}(c)$. It is in units of
    d, so that the scales of coordinates do not matter. B and c are computed by a singular value decomposition of W,
    its *canonical form*. A and AR give the same covariance for every orthogonal R, so A represents $AA^\top$, a
    matrix of fixed rank, and the distance of two such matrices is that of their A after optimal rotation (Journée,
    Bach, Absil & Sepulchre 2010). The gradient of a function of $AA^\top$ is orthogonal to all rotations by R,
    so the gradient step in A is the gradient step of this quotient geometry.
    `AutoProductStiefelLowRankMultivariateNormal` has B and c as separate parameters, and its columns can collapse.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``relative_factor`` A, ``(m, rank)``. Computed from
    these, detached: ``cov_factor`` B, ``(m, rank)``, and ``factor_scale`` c ≥ 0, ``(rank,)``, in decreasing order.
    dtype and device are those of the model. Any optimiser can be used.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column.
        path_derivative: whether to use the path-derivative gradient of the entropy (see `PathDerivative`): the noise
            of the ELBO's gradient vanishes where the guide equals the posterior. False uses the closed-form entropy,
            as rank 0 always does; it has less noise while the guide is much narrower than the posterior, or if the
            family does not contain the posterior.

    Raises:
        ValueError: for a rank or scale out of range, and for loaded parameters of another shape.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718, for the family; Journée, Bach, Absil & Sepulchre, SIAM J.
        Optim. 20 (2010), for the quotient geometry.

    Examples:
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
        self.relative_factor = nn.Parameter(factor)  # columns of norm 1, in units of the diagonal's scale

    def _scaled_factor(self) -> Tensor:
        return self.relative_factor * self.scale.unsqueeze(-1)

    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        return canonical_form(self._checked_factor().detach())

    @property
    def cov_factor(self) -> Tensor:
        """B, ``(m, rank)``, with orthonormal columns in decreasing order of ``factor_scale``."""
        return self._canonical_form()[0]

    @property
    def factor_scale(self) -> Tensor:
        """Standard deviations c ≥ 0 along the columns, ``(rank,)``."""
        return self._canonical_form()[1]


class _AutoOrthonormalLowRank(_AutoLowRank):
    """Guide in which the orthonormal B is a constrained parameter and the scales are another parameter."""

    factor_constraint: Constraint

    def _setup_factor(self, factor: Tensor, scale: float) -> None:
        self.cov_factor = PyroParam(factor, constraint=self.factor_constraint)
        self._setup_factor_scale(factor.new_full((factor.shape[-1],), scale))

    @abstractmethod
    def _setup_factor_scale(self, initial: Tensor) -> None:
        """Register ``factor_scale``, from an initial value for each column."""

    def _scaled_factor(self) -> Tensor:
        return self.cov_factor * self.factor_scale

    def _canonical_form(self) -> tuple[Tensor, Tensor]:
        return self.cov_factor, self.factor_scale


class AutoProductStiefelLowRankMultivariateNormal(_AutoOrthonormalLowRank):
    r"""Gaussian guide of the family of `AutoStiefelLowRankMultivariateNormal`, with B and c as separate parameters.

    B moves on the Stiefel manifold (the matrices with orthonormal columns), and each entry of c is a parameter. The
    gradient of column k of B is $c_k^2$ times a matrix applied to that column. A column that starts orthogonal to a
    direction of large variance therefore shrinks and then hardly rotates, and columns with nearly equal c hardly rotate
    into each other. In thousands of dimensions without a direction of large variance this guide is nevertheless
    preferable, because a scalar scale decreases quickly.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``cov_factor`` B, ``(m, rank)``, with the constraint
    `constraints.stiefel` (orthonormal columns); ``factor_scale`` c > 0, ``(rank,)``. The optimisers of
    `pyro_manifold.optim` keep B orthonormal at every step; others move an unconstrained matrix, to which B is the
    nearest orthonormal one.

    Arguments and errors are those of `AutoStiefelLowRankMultivariateNormal`.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
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
    r"""Gaussian guide over all latent variables with an orthonormal factor and one scale for all of its columns.

    $$
    \theta = \mu + sBz + d \circ \varepsilon, \qquad
    \Sigma = s^2 BB^\top + \mathrm{diag}(d^2), \qquad B^\top B = I .
    $$

    Σ does not change when B becomes BR for an orthogonal R: only the subspace spanned by its columns matters (the set
    of these subspaces is the Grassmann manifold). The family is smaller than that of
    `AutoStiefelLowRankMultivariateNormal`, at the same cost. The source fixes s = 1, which is suitable if coordinates
    are in units of their prior standard deviation.

    Parameters: ``loc`` μ, ``(m,)``; ``scale`` d > 0, ``(m,)``; ``cov_factor`` B, ``(m, rank)``, in
    `constraints.grassmann`; ``factor_scale`` s > 0, a scalar. The optimisers of `pyro_manifold.optim` keep B
    orthonormal at every step; others move an unconstrained matrix, to which B is the nearest orthonormal one.

    Args:
        model: a Pyro model with continuous latent variables.
        rank: columns of B, 0 to m; 0 is the mean field, None about √m.
        factor_scale: a fixed s; None to optimise it. The paper's family is ``factor_scale=1.0``.
        init_loc_fn: initial value of each site, as in Pyro.
        init_scale: initial standard deviation, √½ of it from the diagonal and √½ along each column (unless s is given).
        path_derivative: as for `AutoStiefelLowRankMultivariateNormal`.

    Raises:
        ValueError: for a rank or scale out of range, and for loaded parameters of another shape.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
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
