"""Embedding of the parameters of a Pyro model whose pull-back is a metric for sampling.

Like `model.py`, this module uses Pyro's handlers; its result is a
function of plain tensors. The embedding of a single distribution is in `fisher.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import MaskedDistribution
from torch import Tensor

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.fisher import Moves, NoEmbeddingError, fisher_embedding, masked
from pyro_manifold.density.model import ModelTarget

Embedding = Callable[[Sites], Tensor]
"""Function from unconstrained values ``{site: ...}`` of one chain to a vector ``(l,)``."""

__all__ = ["Embedding", "embedding_from_model"]

_REMEDY = "pass metric=, a function of the sites to a vector whose pull-back is the metric."


def embedding_from_model(
    target: ModelTarget, values: Sites, metric_scale: Mapping[str, float] | None = None
) -> Embedding:
    r"""Return whitened predictions and parameters of a model, concatenated to a vector, as a function of its sites.

    The pull-back of the Euclidean metric of the vector to the unconstrained parameters is their Fisher information plus
    the precision of their priors. Each element of an observed site contributes the components of its distribution. In
    the table z = (y - μ)/σ; a parameter that is `fixed` does not depend on latent sites; after `or` are the components
    for a scale that does, up to constants:

    | distribution | components | pull-back |
    |---|---|---|
    | Normal(μ, σ) | z, or z and log σ | (dμ² + 2 dσ²)/σ² |
    | Logistic(μ, σ) | z/√3, or z and log σ | (dμ² + (1 + π²/3) dσ²)/3σ² |
    | Laplace(μ, σ) | z, or asinh z and log σ | (dμ² + dσ²)/σ² |
    | StudentT(ν, μ, σ), ν fixed | √((ν+1)/(ν+3)) z, or asinh(z/√ν) and log σ | ((ν+1) dμ² + 2ν dσ²)/(ν+3)σ² |
    | Cauchy(μ, σ) | z/√2, or asinh z | (dμ² + dσ²)/2σ² |
    | Gumbel(μ, σ), σ fixed | z | dμ²/σ² |
    | MultivariateNormal(μ, LLᵀ), LowRankMultivariateNormal, L fixed | L⁻¹(y - μ) | \|L⁻¹dμ\|² |
    | Exponential(λ) | log yλ | dλ²/λ² |
    | Gamma(a, λ), a fixed | √a log yλ | a dλ²/λ² |
    | Weibull(σ, k), k fixed | k log y/σ | k² dσ²/σ² |
    | HalfNormal(σ), HalfCauchy(σ) | √2 log y/σ, √½ log y/σ | 2 dσ²/σ², ½ dσ²/σ² |
    | Bernoulli(π), Binomial(n, π), n fixed | 2√n arcsin √π | n dπ²/π(1 - π) |
    | Poisson(λ) | 2√λ | dλ²/λ |
    | NegativeBinomial(r, mean ro), r fixed; Geometric: r = 1 | 2√r asinh √o | r do²/o(1 + o) |
    | Categorical(π), OneHotCategorical(π), Multinomial(n, π) | 2√nπ, one for each category | n Σ dπ²/π |

    After `or` the pull-back depends on the data, and the table has its mean over y; for StudentT with ν < 1 it has
    ν + 1 in place of 2ν. Fixed bijections of these distributions, such as LogNormal, InverseGamma and Pareto of fixed
    scale, have the components of the distribution itself. A site independent of latent sites contributes nothing,
    including a `pyro.factor`; one that does, and whose distribution is not in the table, is an error.

    A latent site whose prior is in the upper part of the table, down to HalfCauchy, contributes as if it were
    observed: the precision of its prior, in log coordinates if it is positive. Any other latent site contributes its
    unconstrained coordinates, as if they had unit prior precision: Beta, Dirichlet, Uniform, ImproperUniform, a
    distribution of the table whose fixed parameter is not fixed, and any prior with a mask; ``metric_scale`` changes
    their weight.
    Masked data contribute zero, scaled ones (`poutine.scale`) are multiplied by the square root of their scale.

    Args:
        target: the result of `target_from_model` for the model and its arguments.
        values: unconstrained values of one chain, at which dependences of parameters on latent sites are found.
        metric_scale: factor of the contribution of the named sites to the metric.

    Raises:
        ValueError: for an observed site of another distribution, or with a parameter that should be fixed and is not; a
            discrete latent site; an unknown name in ``metric_scale``.
    """
    weights = dict(metric_scale or {})

    def share(name: str, site: dict[str, Any], sites: Sites, moves: Moves) -> Tensor:
        return _share(name, site, sites.get(name), moves) * math.sqrt(weights.get(name, 1.0))

    # Once with gradients on, to find which parameters depend on latent sites, and which data do not.
    moving: dict[str, dict[str, bool]] = {}
    with torch.enable_grad():
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        depends = partial(_depends, tuple(leaves.values()))
        seen = _sites_of_model(target, leaves)
        for name, site in seen.items():
            if name in leaves or depends(site["fn"].log_prob(site["value"])):
                found: dict[str, bool] = {}
                if depends(share(name, site, leaves, _remembering(depends, found))):
                    moving[name] = found
    unknown = sorted(set(weights) - set(seen))
    if unknown:
        raise ValueError(f"metric_scale names {unknown}, but the model's sites are {sorted(seen)}.")

    def embedding(sites: Sites) -> Tensor:
        current = _sites_of_model(target, sites)
        recalled = {name: _recalling(found) for name, found in moving.items()}
        return torch.cat([share(name, current[name], sites, moves).flatten() for name, moves in recalled.items()])

    return embedding


def _remembering(depends: Callable[[Tensor], bool], found: dict[str, bool]) -> Moves:
    return lambda parameter, value: found.setdefault(parameter, depends(value))


def _recalling(found: dict[str, bool]) -> Moves:
    return lambda parameter, value: found[parameter]


def _depends(leaves: tuple[Tensor, ...], value: Any) -> bool:
    """Return whether a value depends on the leaves; that it requires a gradient may be due to the user's parameters."""
    if not (torch.is_tensor(value) and value.requires_grad):
        return False
    gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True, retain_graph=True)
    return any(gradient is not None for gradient in gradients)


def _sites_of_model(target: ModelTarget, sites: Sites) -> dict[str, dict[str, Any]]:
    """Return the likelihood and prior sites of a model at unconstrained values."""
    values = target.values(sites)
    with pyro.validation_enabled(False):
        trace = poutine.block(poutine.trace(poutine.condition(target.program, data=values)).get_trace)()
    found = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site["infer"].get("_deterministic") or _is_plate(site):
            continue
        if not site["is_observed"]:
            raise ValueError(f"Site '{name}' is summed out, which the automatic metric does not support: {_REMEDY}")
        found[name] = site
    return found


def _is_masked(site: dict[str, Any]) -> bool:
    distribution = site["fn"]
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            return True
        distribution = getattr(distribution, "base_dist", None)
    return site["mask"] is not None


def _is_plate(site: dict[str, Any]) -> bool:
    return hasattr(site["fn"], "subsample_size")


def _share(name: str, site: dict[str, Any], coordinates: Tensor | None, moves: Moves) -> Tensor:
    """Return the components that one site contributes; ``coordinates`` are those of a latent site, None for data."""
    if coordinates is not None and _is_masked(site):
        return coordinates  # zero, as for masked data, would make the metric singular
    try:
        components = fisher_embedding(site["fn"], site["value"], moves)
    except NoEmbeddingError as error:
        if coordinates is not None:
            return coordinates
        raise ValueError(f"Site '{name}': the automatic metric {error}: {_REMEDY}") from None
    if site["mask"] is not None:
        components = masked(components, site["mask"])
    if torch.is_tensor(site["scale"]) or site["scale"] != 1:
        components = components * torch.as_tensor(site["scale"]).to(components).sqrt().unsqueeze(-1)
    return components
