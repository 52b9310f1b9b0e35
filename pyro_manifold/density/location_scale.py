"""Sites of location-scale families whose location or scale depends on other sites, such as the effects of groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import AsymmetricLaplace, Logistic, SkewLogistic, SoftLaplace
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Cauchy,
    Distribution,
    ExpTransform,
    Gumbel,
    Independent,
    Laplace,
    Normal,
    StudentT,
    Transform,
    TransformedDistribution,
)

from pyro_manifold.density.model import ModelTarget
from pyro_manifold.density.sites import latent_sites

_FAMILIES = (Normal, StudentT, Laplace, Cauchy, Gumbel, Logistic, SkewLogistic, AsymmetricLaplace, SoftLaplace)
_WRAPPERS = (Independent, MaskedDistribution, ExpandedDistribution)


def location_and_scale(distribution: Distribution) -> tuple[Tensor, Tensor] | None:
    """Return location and scale of each element of a distribution of a location-scale family; None for any other.

    Of a distribution on the positive numbers they are those of the logarithm.
    """
    base, changes, _ = _base_and_changes(distribution)
    changed: Any = distribution
    if not isinstance(base, _FAMILIES) or not all(isinstance(change, AffineTransform) for change in changes):
        return None
    loc, scale = base.loc, base.scale
    for change in changes:
        loc, scale = change.loc + change.scale * loc, torch.as_tensor(change.scale).abs() * scale
    shape = changed.shape()
    return torch.as_tensor(loc).expand(shape), torch.as_tensor(scale).expand(shape)


def is_exponential(distribution: Any) -> bool:
    """Return whether location and scale of a distribution are those of the logarithm of its values."""
    return _base_and_changes(distribution)[2]


def _base_and_changes(distribution: Any) -> tuple[Any, list[Any], bool]:
    """Return the base of a transformed distribution, its transforms, and whether a last exponential was left out."""
    found, changes, exponential = _unwrapped(distribution), [], False
    if isinstance(found, TransformedDistribution) and not isinstance(found, _FAMILIES):  # torch's Gumbel is both
        changes, found = list(found.transforms), _unwrapped(found.base_dist)
        exponential = bool(changes) and isinstance(changes[-1], ExpTransform)
        changes = changes[:-1] if exponential else changes
    return found, changes, exponential


def _unwrapped(distribution: Any) -> Any:
    while isinstance(distribution, _WRAPPERS):
        distribution = distribution.base_dist
    return distribution


def location_scale_sites(target: ModelTarget) -> dict[str, torch.Size]:
    """Return the shapes of the sites whose location or scale depends on other sites, in the order of the model.

    There are none in a model that has sites to be summed out. They are those of the same random point in each process,
    and the random number generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False), poutine.block(), torch.enable_grad():
        torch.manual_seed(0)
        try:
            start = target.values(target.draw())
            leaves = {name: x.detach().clone().requires_grad_() for name, x in start.items()}
            nodes = poutine.trace(poutine.condition(target.program, leaves)).get_trace().nodes
        except Exception:  # a model can fail in any way at a random point; its sites then move as written
            return {}
        if any(site["fn"].has_enumerate_support for site in latent_sites(nodes).values()):
            return {}
        found = {}
        for name in [name for name in nodes if name in target.transforms]:
            fn, to_real = nodes[name]["fn"], target.transforms[name]
            parts = location_and_scale(fn)
            if parts is None or not _depends(parts, leaves.values()) or not _has_own_coordinates(nodes[name], to_real):
                continue
            found[name] = fn.shape()
        return found


def _has_own_coordinates(site: Any, to_real: Transform) -> bool:
    """Return whether the unconstrained coordinate of a site is x, and of a positive one log x."""
    value = site["value"].detach()
    expected, coordinate = value.log() if is_exponential(site["fn"]) else value, to_real(value)
    return expected.shape == coordinate.shape and torch.allclose(coordinate, expected)


def _depends(parts: Iterable[Tensor], leaves: Iterable[Tensor]) -> bool:
    moving = [x.sum() for x in parts if x.requires_grad]
    if not moving:
        return False
    found = torch.autograd.grad(torch.stack(moving).sum(), list(leaves), allow_unused=True, retain_graph=True)
    return any(gradient is not None for gradient in found)
