r"""Draws of a guide as functions of its parameters and of standard normal noise.

With noise $z_k$ and draws $\theta_k = T_\lambda(z_k)$ the gradient of the ELBO by the guide's parameters λ
is

$$
\frac{1}{K} \sum_k \Big[ \nabla_\theta \log p(x, \theta_k)\, \frac{\partial T_\lambda(z_k)}{\partial \lambda}
+ s_k \Big],
$$

where $s_k$ estimates the gradient of the entropy: in closed form, $\nabla_\lambda \log |\det \partial T|$,
or by the path derivative, $-\nabla_\theta \log q(\theta_k)\, \partial T_\lambda(z_k) / \partial \lambda$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.infer import autoguide as pyros
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn

from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)


class Draws(NamedTuple):
    """Draws of a guide in unconstrained space.

    Attributes:
        values: θ, ``(draws, dimensions)``.
        log_density: log q(θ), ``(draws,)``, detached.
        negative_entropy: a scalar whose gradient estimates that of the sum of log q over the draws; its value has no
            meaning.
    """

    values: Tensor
    log_density: Tensor
    negative_entropy: Tensor


Form = Callable[[Any, Tensor], Draws]
"""Function from a guide and noise ``(draws, noise)`` to draws."""


@dataclass(frozen=True)
class Reparametrisation:
    """Guide whose draws are a function of its parameters and noise.

    Attributes:
        guide: the guide, which has been called.
        form: function from guide and noise to draws.
        noise: number of standard normal numbers of a draw.
        shapes: unconstrained shape of each site, in the order of the dimensions.
    """

    guide: AutoGuide
    form: Form
    noise: int
    shapes: dict[str, torch.Size]

    def draws(self, parameters: dict[str, Tensor], noise: Tensor) -> Draws:
        """Return draws at other values of the unconstrained parameters, by their names in the guide."""
        module = _Applied(self.guide, self.form)
        replaced = {f"guide.{name}": value for name, value in parameters.items()}
        found: Draws = torch.func.functional_call(module, replaced, (noise,))
        return found

    def sites(self, values: Tensor) -> dict[str, Tensor]:
        """Return draws ``(draws, dimensions)`` by site."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = values.split(sizes, -1)
        return {
            name: part.reshape(len(values), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class _Applied(nn.Module):
    """Module that applies a form outside of the guide's own call, so that its parameters are not Pyro statements."""

    def __init__(self, guide: AutoGuide, form: Form) -> None:
        super().__init__()
        self.guide, self._form = guide, form

    def forward(self, noise: Tensor) -> Draws:
        return self._form(self.guide, noise)


def reparametrisation_of(guide: Any) -> Reparametrisation | None:
    """Return the reparametrisation of a guide that has been called; None for a guide of another kind.

    A subclass that redefines its distribution is not supported.
    """
    kind = kind_of(guide)
    if kind is None:
        return None
    shapes = _shapes(guide)
    dimensions = sum(shape.numel() for shape in shapes.values())
    form = _FORMS[kind]
    extra = guide.rank or 0 if form in (_low_rank, _low_rank_of_pyro) else 0
    return Reparametrisation(guide, form, dimensions + extra, shapes)


def kind_of(guide: Any) -> type | None:
    """Return the class by which a guide is reparametrised; None if there is none."""
    owner = type(guide)
    for kind in owner.__mro__:
        if kind in _FORMS:
            same = all(getattr(owner, name, None) is getattr(kind, name, None) for name in _DEFINING)
            return kind if same else None
    return None


def _shapes(guide: Any) -> dict[str, torch.Size]:
    names = [name for name, _ in guide.prototype_trace.iter_stochastic_nodes()]
    if isinstance(guide, pyros.AutoNormal):
        return {name: _loc_and_scale(guide, name)[0].shape for name in names}
    return {name: torch.Size(guide._unconstrained_shapes[name]) for name in names}


def _loc_and_scale(guide: Any, name: str) -> tuple[Tensor, Tensor]:
    loc, scale = guide._get_loc_and_scale(name)
    return loc, scale


# ---- forms -------------------------------------------------------------------------------------------------------


def _normal_log_density(white: Tensor) -> Tensor:
    """Return the log density of standard normal rows."""
    return -0.5 * (white.square().sum(-1) + white.shape[-1] * math.log(2 * math.pi))


def _mean_field(guide: Any, noise: Tensor) -> Draws:
    pairs = [_loc_and_scale(guide, name) for name, _ in guide.prototype_trace.iter_stochastic_nodes()]
    loc, scale = (torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*pairs, strict=True))
    return _diagonal(loc, scale, noise)


def _diagonal_normal(guide: Any, noise: Tensor) -> Draws:
    return _diagonal(guide.loc, guide.scale, noise)


def _diagonal(loc: Tensor, scale: Tensor, noise: Tensor) -> Draws:
    volume = scale.log().sum()
    return Draws(loc + scale * noise, _normal_log_density(noise) - volume.detach(), -len(noise) * volume)


def _full_rank(guide: Any, noise: Tensor) -> Draws:
    root = guide.scale.unsqueeze(-1) * guide.scale_tril
    volume = guide.scale.log().sum()  # the triangular factor has a unit diagonal
    log_density = _normal_log_density(noise) - volume.detach()
    return Draws(guide.loc + noise @ root.mT, log_density, -len(noise) * volume)


def _flow(guide: Any, noise: Tensor) -> Draws:
    transform, noise = guide.get_transform(), noise.clone()  # transforms cache results by the tensor object
    values = transform(noise)
    volume = transform.log_abs_det_jacobian(noise, values)
    return Draws(values, _normal_log_density(noise) - volume.detach(), -volume.sum())


def _low_rank(guide: Any, noise: Tensor) -> Draws:
    if not guide.rank:
        return _diagonal(guide.loc, guide.scale, noise)
    relative = getattr(guide, "relative_factor", None)
    ratio = guide._scaled_factor() / guide.scale.unsqueeze(-1) if relative is None else relative
    return _relative_low_rank(guide.loc, guide.scale, ratio, noise, path_derivative=guide.path_derivative)


def _low_rank_of_pyro(guide: Any, noise: Tensor) -> Draws:
    return _relative_low_rank(guide.loc, guide.scale, guide.cov_factor, noise, path_derivative=False)


def _relative_low_rank(loc: Tensor, scale: Tensor, ratio: Tensor, noise: Tensor, *, path_derivative: bool) -> Draws:
    r"""Return draws of N(μ, D(I + VVᵀ)D) with V = ratio and D = diag(scale), by Woodbury's formula.

    The gradient of $\tfrac12 \log\det(I + V^\top V)$ by V is $V (I + V^\top V)^{-1}$.
    """
    rank = ratio.shape[-1]
    white = noise[:, rank:] + noise[:, :rank] @ ratio.mT  # (θ - μ) / d
    values = loc + scale * white
    fixed, white = ratio.detach(), white.detach()
    root = torch.linalg.cholesky(torch.eye(rank, dtype=ratio.dtype, device=ratio.device) + fixed.mT @ fixed)
    along = torch.cholesky_solve((white @ fixed).mT, root).mT  # Vᵀx (I + VᵀV)⁻¹
    rest = white - along @ fixed.mT
    quadratic, volume = (white * rest).sum(-1), scale.log().sum()
    constant = loc.shape[-1] * math.log(2 * math.pi) + 2 * root.diagonal().log().sum() + 2 * volume.detach()
    if path_derivative:
        score = -rest / scale.detach()
        return Draws(values, -0.5 * (quadratic + constant), (values * score).sum())
    inverse = torch.cholesky_solve(fixed.mT, root).mT
    return Draws(values, -0.5 * (quadratic + constant), -len(noise) * (volume + (ratio * inverse).sum()))


_FORMS: dict[type, Form] = {
    AutoStiefelLowRankMultivariateNormal: _low_rank,
    AutoProductStiefelLowRankMultivariateNormal: _low_rank,
    AutoGrassmannLowRankMultivariateNormal: _low_rank,
    pyros.AutoLowRankMultivariateNormal: _low_rank_of_pyro,
    pyros.AutoMultivariateNormal: _full_rank,
    pyros.AutoDiagonalNormal: _diagonal_normal,
    pyros.AutoNormal: _mean_field,
    pyros.AutoIAFNormal: _flow,
    pyros.AutoNormalizingFlow: _flow,
}

_DEFINING = (
    *("forward", "sample_latent", "get_posterior", "get_transform", "get_base_dist", "_unpack_latent"),
    *("_scaled_factor", "_checked_factor", "_get_loc_and_scale"),
)
"""Methods that define the distribution of a guide."""
