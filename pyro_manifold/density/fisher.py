r"""Embeddings of distributions and their draws, whose pull-back is the Fisher information of the parameters.

The embedding of a distribution with one parameter θ and information I(θ) has one component, $\int\sqrt{I}\,d\theta$.
That of a location m with fixed scale s is $\sqrt c\,(y-m)/s$, c the information of the family at s = 1. The draw y
enters as the parameters do, so that the same component serves for a prior: its pull-back is the information of m and y
together.

A location and a scale that both depend on latent sites span a hyperbolic plane, which has no embedding by a few
functions of (m, s). With functions of the draw it has one in the mean: let z = (y - m)/s. The components α g(z),
β log s pull back to

$$ \bigl(\alpha^2 g'(z)^2 (dm + z\,ds)^2 + \beta^2 ds^2\bigr)/s^2, $$

whose mean over y is the information if E α²g'² is that of m, E α²g'²z² + β² that of log s, and E g'²z = 0. Light tails
have g(z) = z. Heavy tails have g(z) = asinh(z/κ), so that the influence of an outlier is bounded as in its score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
import torch.distributions as torch_dist
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor

from pyro_manifold.compiled import broadcast_shapes

Moves = Callable[[str, Tensor], bool]
"""Function from the name and value of a parameter to whether it depends on latent sites."""


class NoEmbeddingError(ValueError):
    """Error for a distribution without such an embedding; the message names it and the parameter that must be fixed."""


def fisher_embedding(distribution: Any, value: Tensor, moves: Moves) -> Tensor:
    """Return the embedding of each draw, ``(*batch, k)``, concatenated over the draws of an event.

    Raises:
        NoEmbeddingError: if the distribution is not in the table, or a parameter that must be fixed is not.
    """
    batch = broadcast_shapes(distribution.batch_shape, value.shape[: value.dim() - len(distribution.event_shape)])
    components = _components(distribution, value, moves)
    return components.expand(*batch, components.shape[-1])


def masked(components: Tensor, mask: Tensor | bool) -> Tensor:
    """Return the components, set to zero where the mask ``(*batch)`` is False."""
    return torch.where(torch.as_tensor(mask).unsqueeze(-1), components, torch.zeros_like(components))


def _components(distribution: Any, value: Tensor, moves: Moves) -> Tensor:
    if isinstance(distribution, torch_dist.Independent):
        return fisher_embedding(distribution.base_dist, value, moves).flatten(
            -distribution.reinterpreted_batch_ndims - 1
        )
    if isinstance(distribution, MaskedDistribution):
        return masked(fisher_embedding(distribution.base_dist, value, moves), distribution._mask)
    if isinstance(distribution, ExpandedDistribution):
        return fisher_embedding(distribution.base_dist, value, moves)
    for kind, row in _DISTRIBUTIONS.items():
        if isinstance(distribution, kind):
            return row.components(distribution, value, moves)
    if isinstance(distribution, torch_dist.TransformedDistribution):
        return _transformed(distribution, value, moves)
    raise NoEmbeddingError(f"has no embedding for {type(distribution).__name__}")


def _transformed(distribution: Any, value: Tensor, moves: Moves) -> Tensor:
    """Return the components of the base distribution: a fixed bijection of the draw does not change the information."""
    inverse = torch_dist.ComposeTransform(distribution.transforms).inv
    if not inverse.bijective:
        raise NoEmbeddingError(f"has no embedding for {type(distribution).__name__}")
    if moves("transforms", inverse(value.detach())):
        raise NoEmbeddingError(f"needs transforms of {type(distribution).__name__} that do not depend on latent sites")
    return fisher_embedding(distribution.base_dist, inverse(value), moves)


Components = Callable[[Any, Tensor], Tensor]
"""Function from a distribution and its draws to ``(*batch, k)``, up to broadcasting."""


class _Row(NamedTuple):
    """A row of the table of distributions.

    Attributes:
        embed: function that returns the components.
        known: parameters that must not depend on latent sites.
        with_scale: the same if the scale depends on latent sites; None if it must not, or if ``embed`` allows it.
    """

    embed: Components
    known: tuple[str, ...] = ()
    with_scale: Components | None = None

    def components(self, distribution: Any, value: Tensor, moves: Moves) -> Tensor:
        for name in self.known:
            if moves(name, getattr(distribution, name)):
                kind = type(distribution).__name__
                raise NoEmbeddingError(f"needs a {name} of {kind} that does not depend on latent sites")
        if self.with_scale is not None and moves("scale", distribution.scale):
            return self.with_scale(distribution, value)
        return self.embed(distribution, value)


# ---- locations and scales ---------------------------------------------------------------------------------------


def _residual(distribution: Any, value: Tensor) -> Tensor:
    return (value - distribution.loc) / distribution.scale


def _location(information: float) -> Components:
    """Return √c z: c is the information of the location at unit scale."""
    return lambda distribution, y: (information**0.5 * _residual(distribution, y)).unsqueeze(-1)


def _location_and_scale(distribution: Any, residual: Tensor, scale_information: Tensor | float) -> Tensor:
    return torch.stack(torch.broadcast_tensors(residual, scale_information**0.5 * distribution.scale.log()), -1)


def _normal_with_scale(distribution: Any, value: Tensor) -> Tensor:
    """Return the components for information 1 of the location and 2 of the log scale; E z² = 1."""
    return _location_and_scale(distribution, _residual(distribution, value), 1.0)


def _logistic_with_scale(distribution: Any, value: Tensor) -> Tensor:
    """Return the components for information 1/3 of the location and 1/3 + π²/9 of the log scale; E z² = π²/3."""
    return _location_and_scale(distribution, 3**-0.5 * _residual(distribution, value), 1 / 3)


_SINE_INTEGRAL, _COSINE_INTEGRAL = 0.946083070367183, 0.3374039229009681  # Si(1), Ci(1)
_LAPLACE_MEAN = float(math.sin(1) * _COSINE_INTEGRAL + math.cos(1) * (math.pi / 2 - _SINE_INTEGRAL))


def _laplace_with_scale(distribution: Any, value: Tensor) -> Tensor:
    """Return the components for information 1 of both; κ = 1, A = E 1/(1 + z²): α² = 1/A, so E α²g'²z² = 1/A - 1."""
    return _location_and_scale(
        distribution, _residual(distribution, value).asinh() / _LAPLACE_MEAN**0.5, 2 - 1 / _LAPLACE_MEAN
    )


def _heavy_tailed_with_scale(distribution: Any, value: Tensor, freedom: Tensor) -> Tensor:
    """Return the components for information (ν + 1)/(ν + 3) of the location and 2ν/(ν + 3) of the log scale, κ² = ν.

    1/(1 + z²/ν) has the distribution Beta(ν/2, ½). Below ν = 1 the scale gets (ν + 1)/(ν + 3), more than its
    information.
    """
    residual = (freedom + 1) / (freedom + 3).sqrt() * (_residual(distribution, value) / freedom.sqrt()).asinh()
    return _location_and_scale(distribution, residual, (freedom - 1).clamp(min=0) / (freedom + 3))


def _student(distribution: Any, value: Tensor) -> Tensor:
    return (((distribution.df + 1) / (distribution.df + 3)).sqrt() * _residual(distribution, value)).unsqueeze(-1)


def _student_with_scale(distribution: Any, value: Tensor) -> Tensor:
    return _heavy_tailed_with_scale(distribution, value, distribution.df)


def _cauchy_with_scale(distribution: Any, value: Tensor) -> Tensor:
    return _heavy_tailed_with_scale(distribution, value, torch.ones_like(distribution.scale))


def _multivariate_normal(distribution: Any, value: Tensor) -> Tensor:
    residual = (value - distribution.loc).unsqueeze(-1)
    return torch.linalg.solve_triangular(distribution.scale_tril, residual, upper=False).squeeze(-1)


def _log_scale(value: Tensor, scale: Tensor, information: Tensor | float) -> Tensor:
    """Return the component of a positive draw with a scale: log y has the location log s, for all such families."""
    return (information**0.5 * (value.log() - scale.log())).unsqueeze(-1)


# ---- counts and categories --------------------------------------------------------------------------------------


def _angle(logits: Tensor) -> Tensor:
    """Return 2 arcsin √π up to a constant, in a form that neither overflows nor has infinite derivatives."""
    return 2 * torch.atan(torch.tanh(logits / 4))


def _hyperbolic_angle(logits: Tensor) -> Tensor:
    """Return 2 asinh √odds: the information of the log odds is π for each failure. It overflows where √odds does."""
    return 2 * (logits / 2).exp().asinh()


def _poisson(distribution: Any, value: Tensor) -> Tensor:
    # A rate that underflows to zero would have an infinite derivative.
    return (2 * (distribution.rate + torch.finfo(distribution.rate.dtype).eps ** 3).sqrt()).unsqueeze(-1)


def _categories(distribution: Any, value: Tensor) -> Tensor:
    return 2 * (distribution.logits / 2).exp()


_DISTRIBUTIONS: dict[type, _Row] = {
    # Locations with a scale.
    torch_dist.Normal: _Row(_location(1.0), with_scale=_normal_with_scale),
    dist.Logistic: _Row(_location(1 / 3), with_scale=_logistic_with_scale),
    torch_dist.Laplace: _Row(_location(1.0), with_scale=_laplace_with_scale),
    torch_dist.StudentT: _Row(_student, ("df",), _student_with_scale),
    torch_dist.Cauchy: _Row(_location(1 / 2), with_scale=_cauchy_with_scale),
    torch_dist.Gumbel: _Row(_location(1.0), ("scale",)),
    torch_dist.MultivariateNormal: _Row(_multivariate_normal, ("scale_tril",)),
    torch_dist.LowRankMultivariateNormal: _Row(_multivariate_normal, ("scale_tril",)),
    # Scales of positive draws.
    torch_dist.Exponential: _Row(lambda distribution, y: _log_scale(y, 1 / distribution.rate, 1.0)),
    torch_dist.Gamma: _Row(
        lambda distribution, y: _log_scale(y, 1 / distribution.rate, distribution.concentration), ("concentration",)
    ),
    torch_dist.Weibull: _Row(
        lambda distribution, y: _log_scale(y, distribution.scale, distribution.concentration**2), ("concentration",)
    ),
    torch_dist.HalfNormal: _Row(lambda distribution, y: _log_scale(y, distribution.scale, 2.0)),
    torch_dist.HalfCauchy: _Row(lambda distribution, y: _log_scale(y, distribution.scale, 1 / 2)),
    # Counts and categories.
    torch_dist.Bernoulli: _Row(lambda distribution, y: _angle(distribution.logits).unsqueeze(-1)),
    torch_dist.Binomial: _Row(
        lambda distribution, y: (distribution.total_count**0.5 * _angle(distribution.logits)).unsqueeze(-1),
        ("total_count",),
    ),
    torch_dist.Geometric: _Row(lambda distribution, y: _hyperbolic_angle(-distribution.logits).unsqueeze(-1)),
    torch_dist.NegativeBinomial: _Row(
        lambda distribution, y: (distribution.total_count**0.5 * _hyperbolic_angle(distribution.logits)).unsqueeze(-1),
        ("total_count",),
    ),
    torch_dist.Poisson: _Row(_poisson),
    torch_dist.Categorical: _Row(_categories),
    torch_dist.OneHotCategorical: _Row(_categories),
    torch_dist.Multinomial: _Row(lambda distribution, y: distribution.total_count**0.5 * _categories(distribution, y)),
}
