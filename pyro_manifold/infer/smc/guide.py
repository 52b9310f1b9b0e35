r"""Fitted guides as initial distribution of sequential Monte Carlo, in place of the prior.

$$ \pi_\beta(x) \propto q(x)^{1-\beta}\,\bigl(p(x)\,p(y \mid x)\bigr)^\beta $$

q is a normalised density, so that the ratio of normalising constants is still the evidence. It must be computable in
the coordinates in which the particles move: those of the model for a custom guide, those of the guide for Pyro's
Gaussian guides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous, AutoNormal
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Size, Tensor
from torch.distributions import biject_to

from pyro_manifold.density import ModelTarget, Program, Sites, Target, innermost
from pyro_manifold.distributions import manifold_of, of_elements

_Gaussian = AutoContinuous | AutoNormal


@dataclass
class Base(Target):
    """Initial distribution.

    Attributes:
        sample: draws all sites, as `Target.draw`.
    """

    sample: Callable[[], Sites]

    def draw(self) -> Sites:
        return self.sample()


def is_over_unconstrained_space(guide: object) -> bool:
    """Return whether a guide is a distribution over unconstrained space for all sites, including those on manifolds."""
    return isinstance(guide, _Gaussian)


def target_of_guide(guide: Callable[..., Any], full: ModelTarget, program: Program) -> Target:
    """Return the distribution of a guide as a target, in the coordinates of the model's target.

    Args:
        guide: a fitted guide of Pyro, or any guide that samples the sites of the model and no others.
        full: the model's target, with all sites in unconstrained space if `is_over_unconstrained_space`.
        program: the model with its arguments, which are those of the guide too.

    Raises:
        ValueError: for a guide that is not set up, has other sites than the model, or has no computable density.
    """
    if isinstance(guide, _Gaussian):
        return _of_vector(guide, full)
    program = program.handled(lambda _: guide)
    nodes = _sites_of(program)
    _check_names(nodes, full)
    of_model = poutine.block(poutine.trace(full.program).get_trace)().nodes
    for name in nodes:
        _check_site(name, nodes[name]["fn"], of_model[name]["fn"].support)
    program = program.with_options(transforms=full.transforms, init_strategy=init_to_sample)
    return _with_measure_of(full, program.target)


def _with_measure_of(full: ModelTarget, target: ModelTarget) -> ModelTarget:
    """Return a guide with the density with respect to the base measures of the model, which may differ on spheres."""
    if target.log_measures == full.log_measures:
        return target
    potential, shift = target.potential_fn, full.log_measure - target.log_measure
    return replace(target, potential_fn=lambda sites: potential(sites) + shift)


# ---- Gaussians and flows over all coordinates -------------------------------------------------------------------


def _of_vector(guide: Any, full: Target) -> Target:
    if guide.prototype_trace is None:
        raise ValueError(
            f"init: {type(guide).__name__} has no sites yet: fit it, or call it once with the model's arguments."
        )
    with torch.no_grad():
        shapes, posterior = _posterior(guide)
    _check_names(shapes, full)

    def potential(sites: Sites) -> Tensor:
        return -posterior.log_prob(torch.cat([sites[name].reshape(-1) for name in shapes]))

    def sample() -> Sites:
        with torch.no_grad():
            parts = posterior.sample().split([shape.numel() for shape in shapes.values()])
        return {name: part.reshape(shapes[name]) for name, part in sorted(zip(shapes, parts, strict=True))}

    return Base(potential, {}, full.transforms, sample)


def _posterior(guide: Any) -> tuple[dict[str, Size], Any]:
    """Return the shapes of the unconstrained sites, in the order of the latent vector, and its distribution."""
    if isinstance(guide, AutoContinuous):
        return dict(guide._unconstrained_shapes), guide.get_posterior()
    names = [name for name, _ in guide.prototype_trace.iter_stochastic_nodes()]
    found = {name: guide._get_loc_and_scale(name) for name in names}
    loc, scale = (torch.cat([pair[k].detach().reshape(-1) for pair in found.values()]) for k in range(2))
    return {name: pair[0].shape for name, pair in found.items()}, dist.Normal(loc, scale).to_event(1)


# ---- custom guides ----------------------------------------------------------------------------------------------


def _sites_of(program: Program) -> dict[str, Any]:
    nodes = program.trace().nodes
    nodes = {name: site for name, site in nodes.items() if site["type"] == "sample" and not site["is_observed"]}
    hidden = sorted(name for name, site in nodes.items() if site["infer"].get("is_auxiliary"))
    if hidden:
        raise ValueError(
            f"init: the guide {_name(program.model)} has auxiliary variables {hidden}, so that the density of its "
            "sites is not available: use AutoNormal, AutoMultivariateNormal, a low-rank guide, or a guide that samples "
            "the model's sites directly."
        )
    return {name: site for name, site in nodes.items() if not site["infer"].get("_deterministic")}


def _check_names(names: Mapping[str, Any], full: Target) -> None:
    expected = sorted({*full.manifolds, *full.transforms})
    if sorted(names) != expected:
        raise ValueError(f"init: the guide has the sites {sorted(names)}, expected those of the model, {expected}.")


def _check_site(name: str, distribution: Any, support: Any) -> None:
    """Raise an error unless a site of the guide has a density, on the same support as in the model."""
    if isinstance(innermost(distribution), dist.Delta):
        raise ValueError(f"init: site '{name}' of the guide is a point (Delta), which has no density: use AutoNormal.")
    if not _alike(distribution.support, support):
        raise ValueError(
            f"init: site '{name}' has support {distribution.support} in the guide, expected {support} as in the model."
        )


def _alike(here: Any, there: Any) -> bool:
    """Return whether two supports are the same set."""
    manifolds = manifold_of(here), manifold_of(there)
    if any(manifolds):
        return type(manifolds[0]) is type(manifolds[1])
    here, there = of_elements(here), of_elements(there)
    return str(here) == str(there) or biject_to(here) == biject_to(there)


def _name(guide: object) -> str:
    return getattr(guide, "__name__", type(guide).__name__)
