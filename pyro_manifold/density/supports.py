"""Supports of distributions, which torch declares too wide for some transformed ones.

`TransformedDistribution.support` is the codomain of the last transform. That of an affine transform is the whole line,
also if the base distribution is an `Exponential`, so that chains would move to points that have no density.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from functools import cache, partial
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import ComposeTransform, Transform

from pyro_manifold.density.distribution_parts import with_parts
from pyro_manifold.density.own_supports import is_own
from pyro_manifold.distributions import of_elements

_REAL = (-torch.inf, torch.inf)
_CACHES = {"_cached_x_y", "_inv"}  # of transforms
_POINTS = 64
_DECLARED_TOO_WIDE: set[type] = set()  # kept, since values of a trace have no truth
_ON_IMAGE: set[type] = set()


class ImageConstraint(Constraint):
    """Image of a set under a bijection, such as the half-line from -0.3 of a shifted exponential distribution.

    Args:
        base: the set.
        transform: the bijection, on a set that contains it.
    """

    def __init__(self, base: Constraint, transform: Transform) -> None:
        self.base, self.transform = base, transform
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Number of dimensions of an element."""
        further = max(self.base.event_dim - self.transform.domain.event_dim, 0)
        return self.transform.codomain.event_dim + further

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """True if elements are integers."""
        return self.base.is_discrete

    def check(self, value: Tensor) -> Tensor:
        """Return which elements of a tensor are in the set, up to rounding at its bounds."""
        inside = self.base.check(self.transform.inv(value))
        further = max(self.transform.domain.event_dim - self.base.event_dim, 0)
        return inside.flatten(-further).all(-1) if further else inside

    def __repr__(self) -> str:
        return f"{self.transform} of {self.base}"


@biject_to.register(ImageConstraint)
def _bijection_to_image(constraint: ImageConstraint) -> Transform:
    return ComposeTransform([biject_to(constraint.base), constraint.transform])


@transform_to.register(ImageConstraint)
def _transform_to_image(constraint: ImageConstraint) -> Transform:
    return ComposeTransform([transform_to(constraint.base), constraint.transform])


def _map_of_components(registry: Any, constraint: Any) -> Transform:
    """Return the map to the support of all components of a mixture, which torch does not register."""
    base = constraint.base_constraint
    if any(torch.is_tensor(x) and x.dim() for x in parameters(base)):
        raise NotImplementedError("the components of the mixture have different supports")
    found: Transform = registry(base)
    return found


if hasattr(constraints, "MixtureSameFamilyConstraint"):  # not in the oldest torch
    for registry in (biject_to, transform_to):
        registry.register(constraints.MixtureSameFamilyConstraint, partial(_map_of_components, registry))


def refuse_without_transform(nodes: Mapping[str, Any]) -> None:
    """Raise ValueError for a latent site that has no map to unconstrained space and cannot be summed out."""
    for name, site in nodes.items():
        latent = site["type"] == "sample" and not site["is_observed"] and not site_is_subsample(site)
        sentence = without_map(name, site["fn"]) if latent and isinstance(site["fn"], Distribution) else None
        if sentence:
            raise ValueError(sentence)


def without_map(name: str, distribution: Distribution) -> str | None:
    """Return a sentence on a site that has no map to unconstrained space and cannot be summed out; else None."""
    support: Any = distribution.support
    kind = type(distribution).__name__
    if support is None or (support.is_discrete and distribution.has_enumerate_support):
        return None
    if support.is_discrete:
        return (
            f"Site '{name}': {kind} has infinitely many values, so that it can be neither sampled nor summed out: "
            "integrate it out by hand (a Poisson with a Gamma rate is a GammaPoisson), or observe it."
        )
    try:
        biject_to(support)
    except NotImplementedError:
        return (
            f"Site '{name}': {kind} has the support {support}, of which no map to unconstrained space is known: write "
            "the site by others, as a covariance matrix by LKJCholesky and scales, or register a map by "
            "torch.distributions.biject_to."
        )
    return None


class TrueSupports(Messenger):
    """Handler that replaces distributions whose declared support is too wide by equal ones with their own support."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        msg["fn"] = with_true_support(msg["fn"])


def with_true_support(distribution: Any) -> Any:
    """Return the distribution with its own support: a copy if it has to change, as it may be the user's."""
    if not isinstance(distribution, Distribution):
        return distribution
    found = with_parts(distribution, with_true_support)
    if isinstance(found, TransformedDistribution) and _declares_too_much(found):
        found = copy(found) if found is distribution else found
        kind: Any = type(found)
        found.__class__ = _on_image(kind)
    return found


def _declares_too_much(distribution: TransformedDistribution) -> bool:
    """Return whether the support of a distribution is wider than what follows from its base."""
    image, kind = _image(distribution), type(distribution)
    if not isinstance(image, ImageConstraint):
        return False
    if getattr(kind, "support", None) is TransformedDistribution.support:
        return True
    # Torch's own declare theirs, as LogNormal does, and are right; bounds that rounding gives, as to Gumbel, are none.
    if not is_own(distribution) or kind in _ON_IMAGE:
        return False
    declared: Any = distribution.support
    if kind not in _DECLARED_TOO_WIDE and not _holds_points_of(declared, image, distribution):
        _DECLARED_TOO_WIDE.add(kind)
        warnings.warn(
            f"{kind.__name__} has the support {declared}, and its base and transforms give {image}: the latter is "
            f"used. Leave `support` out of {kind.__name__}, or declare it as narrow.",
            stacklevel=2,
        )
    return kind in _DECLARED_TOO_WIDE


def _holds_points_of(declared: Constraint, image: ImageConstraint, distribution: TransformedDistribution) -> bool:
    """Return whether a set has some points of another, those of normal unconstrained values; True if unknown."""
    tensors = [x for x in parameters([declared, image]) if torch.is_tensor(x) and x.is_floating_point()]
    like = tensors[0] if tensors else torch.empty(())
    try:
        to_declared = transform_to(declared)
        shape = to_declared.inverse_shape(distribution.batch_shape + distribution.event_shape)
        noise = torch.randn(_POINTS, *shape, generator=torch.Generator().manual_seed(0))
        return bool(image.check(to_declared(3 * noise.to(like))).all())
    except Exception:  # a set without a map, or values of a trace, which have no truth
        return True


@cache
def _on_image(kind: Any) -> type:
    def support(distribution: TransformedDistribution) -> Constraint:
        found, event = _image(distribution), len(distribution.event_shape)
        return constraints.independent(found, event - found.event_dim) if event > found.event_dim else found

    def expand(distribution: Any, batch_shape: Any, _instance: Any = None) -> Any:
        return with_true_support(kind.expand(distribution, batch_shape, _instance))

    parts = {"support": property(support), "expand": expand, "__module__": kind.__module__}
    found = type(kind.__name__, (kind,), parts)
    _ON_IMAGE.add(found)
    return found


def _image(distribution: TransformedDistribution) -> Constraint:
    """Return the support that follows from that of the base distribution."""
    found: Any = distribution.base_dist.support
    for transform in distribution.transforms:
        found = transform.codomain if _contains(found, transform.domain) else ImageConstraint(found, transform)
    return found


def _contains(support: Constraint, domain: Constraint) -> bool:
    """Return whether a support is at least the domain of a transform, whose codomain is then its image."""
    of_support, of_domain = of_elements(support), of_elements(domain)
    here, there = bounds(of_support), bounds(of_domain)
    if here is not None and there is not None:
        return bool(torch.as_tensor(here[0] <= there[0]).all() and torch.as_tensor(here[1] >= there[1]).all())
    return here == _REAL or type(of_support) is type(of_domain)


def bounds(support: Constraint) -> tuple[Any, Any] | None:
    """Return the lower and upper bound of an interval; None for any other set."""
    lower, upper = (getattr(support, f"{name}_bound", None) for name in ("lower", "upper"))
    if support is constraints.real or isinstance(support, type(constraints.real)):
        return _REAL
    if support.is_discrete or support.event_dim or (lower is None and upper is None):
        return None
    return (-torch.inf if lower is None else lower), (torch.inf if upper is None else upper)


def parameters(support: Any) -> list[Any]:
    """Return the numbers and tensors on which a support depends, in a fixed order."""
    if torch.is_tensor(support) or isinstance(support, float):
        return [support]
    if isinstance(support, list | tuple):
        return [number for part in support for number in parameters(part)]
    if isinstance(support, Constraint | Transform):
        own = {name: part for name, part in vars(support).items() if name not in _CACHES}
        return [number for part in own.values() for number in parameters(part)]
    return []
