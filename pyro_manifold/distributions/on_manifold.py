"""Base class of distributions on manifolds, and error messages for values that are off a manifold."""

from __future__ import annotations

from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.constraints import manifold_of
from pyro_manifold.manifolds import Grassmann, Manifold, Stiefel

_POLAR_FACTOR = "pyro_manifold.manifolds.polar_factor"
_PROJECTIONS: dict[type[Manifold], str] = {Stiefel: _POLAR_FACTOR, Grassmann: _POLAR_FACTOR}


class OnStiefel(TorchDistribution):
    """Base class of distributions of matrices with orthonormal columns, with validation errors that name the remedy."""

    def _validate_sample(self, value: Tensor) -> None:
        if isinstance(value, Tensor) and value.shape[-2:] == self.event_shape and not self.support.check(value).all():
            raise ValueError(f"{type(self).__name__}: {off_manifold(value, self.support)}.")
        super()._validate_sample(value)


def off_manifold(value: Tensor, support: Constraint) -> str:
    """Return a phrase on how far values are off a support that is a manifold, and how to project them onto it."""
    manifold = manifold_of(support)
    if manifold is None:
        raise ValueError(f"off_manifold: support is {support}, expected that of a manifold.")
    if not value.is_floating_point():
        return f"the value has dtype {value.dtype}, expected torch.float32 or torch.float64"
    off = ~support.check(value)
    error = float(manifold.membership_error(value)[off].max())
    return (
        f"{int(off.sum())} of {off.numel()} values of shape {tuple(value.shape[off.dim() :])} are off the support "
        f"({support}), by up to {error:.1e} where {manifold.membership_tolerance(value.dtype):.1e} is allowed in "
        f"{value.dtype}: give {_projection(manifold)}(value) instead"
    )


def _projection(manifold: Manifold) -> str:
    return _PROJECTIONS.get(type(manifold), f"pyro_manifold.manifolds.{type(manifold).__name__}().projection")
