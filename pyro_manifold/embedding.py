"""From a Pyro model to an embedding of its parameters, whose pull-back is a metric for sampling.

Like `log_density.py`, this is a place where Pyro's handlers meet the samplers on the way in: what leaves it is a
function of plain tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor

from pyro_manifold.log_density import Target
from pyro_manifold.potential import Sites

Embedding = Callable[[Sites], Tensor]
"""Unconstrained values ``{site: ...}`` of one chain to a vector ``(l,)``."""

_REMEDY = "pass metric=, a function of the sites to a vector whose pull-back is the metric."


def embedding_from_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: Target,
    start: Sites,
    metric_scale: Mapping[str, float] | None = None,
) -> Embedding:
    r"""Whitened predictions and parameters of a model, one after the other in a vector.

    The pull-back of the vector to the unconstrained parameters is their Fisher information plus the precision of
    their priors. Each observed site gives, element by element,

    - Normal(μ, σ): :math:`(y-\mu)/\sigma`; and :math:`\log\sigma` beside it if σ depends on latent sites. Then the
      pull-back depends on the data, and its mean over y is the Fisher metric
      :math:`(d\mu^2 + 2\,d\sigma^2)/\sigma^2`. LogNormal the same in :math:`\log y`;
    - MultivariateNormal(μ, LLᵀ), L known: :math:`L^{-1}(y-\mu)`;
    - Bernoulli(π): :math:`2\arcsin\sqrt\pi`, Binomial(n, π): :math:`\sqrt n` times that;
    - Poisson(λ): :math:`2\sqrt\lambda`; Exponential(λ): :math:`\log\lambda`;
    - Categorical(π), OneHotCategorical(π): :math:`2\sqrt\pi`, one entry for each category.

    Each latent site with a Normal, LogNormal or MultivariateNormal prior gives the same as if it were observed, any
    other latent site its unconstrained coordinates, as if they had unit prior precision. Masked elements give zero,
    scaled ones (`poutine.scale`) are multiplied by the root of their scale.

    Args:
        model: the Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        target: what `log_density.target_from_model` made of them.
        start: unconstrained values of one chain, to look at the model with.
        metric_scale: multiplies the share of the named sites in the metric.

    Raises:
        ValueError: for an observed site of another law, a discrete latent site, or an unknown name in
            ``metric_scale``.
    """
    weights = dict(metric_scale or {})

    def parts(sites: Sites, with_scale: frozenset[str] | None) -> dict[str, _Part]:
        values = {name: transform.inv(sites[name]) for name, transform in target.transforms.items()}
        trace = poutine.block(poutine.trace(poutine.condition(model, data=values)).get_trace)(*args, **kwargs)
        found = {}
        for name, site in _likelihoods_and_priors(trace, values):
            whitened = _whiten(name, site, sites.get(name), with_scale)
            found[name] = whitened._replace(value=whitened.value * math.sqrt(weights.get(name, 1.0)))
        return found

    # Once with gradients on, to see which laws have a scale that moves, and which data say nothing of the sites.
    with torch.enable_grad():
        probe = parts({name: value.clone().requires_grad_() for name, value in start.items()}, None)
    unknown = sorted(set(weights) - set(probe))
    if unknown:
        raise ValueError(f"metric_scale names {unknown}, but the model's sites are {sorted(probe)}.")
    with_scale = frozenset(name for name, part in probe.items() if part.scale_moves)
    informative = [name for name, part in probe.items() if part.value.requires_grad]

    def embedding(sites: Sites) -> Tensor:
        found = parts(sites, with_scale)
        return torch.cat([found[name].value.flatten() for name in informative])

    return embedding


class _Part(NamedTuple):
    """What one site contributes, ``(*batch, k)``, and whether its scale depends on latent sites."""

    value: Tensor
    scale_moves: bool = False


def _likelihoods_and_priors(trace: poutine.Trace, values: Sites) -> list[tuple[str, dict[str, Any]]]:
    sites = []
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site["infer"].get("_deterministic") or _is_plate(site):
            continue
        if not site["is_observed"]:
            raise ValueError(
                f"Site '{name}' is summed out, and the automatic metric cannot see through sums: {_REMEDY}"
            )
        sites.append((name, {**site, "latent": name in values}))
    return sites


def _is_plate(site: dict[str, Any]) -> bool:
    return hasattr(site["fn"], "subsample_size")


def _whiten(name: str, site: dict[str, Any], coordinates: Tensor | None, with_scale: frozenset[str] | None) -> _Part:
    part = _of_law(site["fn"], site["value"], None if with_scale is None else name in with_scale)
    if site["latent"]:
        assert coordinates is not None
        if part is None or not _is_gaussian(site["fn"]):
            return _Part(coordinates)
    elif part is None:
        kind = type(_base(site["fn"])).__name__
        raise ValueError(f"Site '{name}': the automatic metric knows no embedding for the likelihood {kind}: {_REMEDY}")
    value = part.value
    if site["mask"] is not None:
        value = _masked(value, torch.as_tensor(site["mask"]))
    if torch.is_tensor(site["scale"]) or site["scale"] != 1:
        value = value * torch.as_tensor(site["scale"]).to(value).sqrt().unsqueeze(-1)
    return part._replace(value=value)


def _base(law: Any) -> Any:
    while isinstance(law, torch.distributions.Independent | MaskedDistribution | ExpandedDistribution):
        law = law.base_dist
    return law


def _is_gaussian(law: Any) -> bool:
    return isinstance(_base(law), torch.distributions.Normal | dist.LogNormal | torch.distributions.MultivariateNormal)


def _masked(value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.unsqueeze(-1), value, torch.zeros_like(value))


def _of_law(law: Any, value: Tensor, with_scale: bool | None) -> _Part | None:
    """The embedding of one law, ``(*batch, k)`` for k numbers a draw; None if there is none."""
    if isinstance(law, torch.distributions.Independent):
        part = _of_law(law.base_dist, value, with_scale)
        return part and part._replace(value=part.value.flatten(-law.reinterpreted_batch_ndims - 1))
    if isinstance(law, MaskedDistribution):
        part = _of_law(law.base_dist, value, with_scale)
        return part and part._replace(value=_masked(part.value, torch.as_tensor(law._mask)))
    if isinstance(law, ExpandedDistribution):
        return _of_law(law.base_dist, value, with_scale)
    for kind, embed in _LAWS.items():
        if isinstance(law, kind):
            return embed(law, value, with_scale)
    return None


def _normal(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    residual = (value - law.loc) / law.scale
    if with_scale is None:
        with_scale = law.scale.requires_grad
    if with_scale:
        return _Part(torch.stack([residual, law.scale.log().expand_as(residual)], -1), True)
    return _Part(residual.unsqueeze(-1))


def _log_normal(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    return _normal(law.base_dist, value.log(), with_scale)


def _multivariate_normal(law: Any, value: Tensor, with_scale: bool | None) -> _Part | None:
    if law.scale_tril.requires_grad:
        return None
    residual = (value - law.loc).unsqueeze(-1)
    return _Part(torch.linalg.solve_triangular(law.scale_tril, residual, upper=False).squeeze(-1))


def _angle(logits: Tensor) -> Tensor:
    """2 arcsin √π but for a constant, in a form that neither overflows nor has infinite derivatives."""
    return 2 * torch.atan(torch.tanh(logits / 4))


def _bernoulli(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    return _Part(_like_data(_angle(law.logits), value))


def _binomial(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    return _Part(_like_data(law.total_count**0.5 * _angle(law.logits), value))


def _poisson(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    return _Part(_like_data(2 * law.rate.sqrt(), value))


def _exponential(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    return _Part(_like_data(law.rate.log(), value))


def _categorical(law: Any, value: Tensor, with_scale: bool | None) -> _Part:
    roots = 2 * (law.logits / 2).exp()
    batch = value.shape[: value.dim() - len(law.event_shape)]
    return _Part(roots.expand(*torch.broadcast_shapes(roots.shape[:-1], batch), roots.shape[-1]))


def _like_data(parameter: Tensor, value: Tensor) -> Tensor:
    """One entry for each observation, also where several share a parameter."""
    return parameter.expand(torch.broadcast_shapes(parameter.shape, value.shape)).unsqueeze(-1)


_LAWS: dict[type, Callable[[Any, Tensor, bool | None], _Part | None]] = {
    torch.distributions.Normal: _normal,
    dist.LogNormal: _log_normal,
    torch.distributions.MultivariateNormal: _multivariate_normal,
    torch.distributions.Bernoulli: _bernoulli,
    torch.distributions.Binomial: _binomial,
    torch.distributions.Poisson: _poisson,
    torch.distributions.Exponential: _exponential,
    torch.distributions.Categorical: _categorical,
    torch.distributions.OneHotCategorical: _categorical,
}
