r"""Targets in whitened coordinates of the components of a Gaussian mixture, chosen per particle.

Space is partitioned into regions: a point belongs to the Gaussian with the largest contribution to the mixture's
density there. A chain never leaves its initial region, outside of which its density is zero, and moves in coordinates z
that are whitened for the Gaussian k of this region,

$$ x = m_k + L_k z, $$

$L_k L_k^\top$ the covariance, x the concatenated unconstrained sites. A transition that leaves the distribution
within each region invariant leaves the whole distribution invariant; weights and resampling determine the mass of each
region. k is a constant site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.density import PotentialFunction, Sites, Target
from pyro_manifold.infer.smc.modes import GaussianMixture
from pyro_manifold.manifolds import Constant

COMPONENT = "component of the mixture"
"""Name of the site k, ``(chains, 1)``."""

_WALL = 1e10  # nats


class Coordinates:
    """Transform of unconstrained sites to whitened coordinates z about one of several centres, and its inverse.

    Args:
        centres: centres of the unconstrained sites, ``{site: (k, ...)}``.
        roots: L, ``(k, size, size)``, of these sites in their order.
    """

    def __init__(self, centres: Sites, roots: Tensor) -> None:
        self._shapes = {name: x.shape[1:] for name, x in centres.items()}
        self._centres = torch.cat([x.reshape(len(x), -1) for x in centres.values()], 1)
        self._roots, self._inverses = roots, by_matrix(torch.linalg.inv, roots)

    def sites(self, z: Sites) -> Sites:
        """Transform z, with the site k, to x; sites on manifolds are unchanged."""
        own = self.own(z)
        root, centre = (own[:, None, None] * self._roots).sum(0), (own[:, None] * self._centres).sum(0)
        return self._with(z, root @ self._flat(z) + centre)

    def whitened(self, x: Sites, k: int) -> Sites:
        """Transform x to z about centre k, and add the site k."""
        sites = self._with(x, self._inverses[k] @ (self._flat(x) - self._centres[k]))
        return {**sites, COMPONENT: self._centres.new_full((1,), k)}

    def own(self, z: Sites) -> Tensor:
        """Return the one-hot vector of the point's Gaussian, ``(k,)``."""
        count = torch.arange(len(self._roots), dtype=self._roots.dtype, device=self._roots.device)
        return (count == z[COMPONENT]).to(self._roots.dtype)

    def _flat(self, sites: Sites) -> Tensor:
        return torch.cat([sites[name].flatten() for name in self._shapes])

    def _with(self, sites: Sites, flat: Tensor) -> Sites:
        parts = flat.split([shape.numel() for shape in self._shapes.values()])
        moved = {name: part.reshape(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}
        return {**{name: x for name, x in sites.items() if name != COMPONENT}, **moved}


@dataclass
class _Drawn(Target):
    """Initial distribution that can be sampled."""

    sample: Callable[[], Sites]

    def draw(self) -> Sites:
        return self.sample()


@dataclass
class WhitenedTarget(_Drawn):
    """Target in whitened coordinates.

    Attributes:
        original: target in the coordinates of the sites.
        coordinates: transform to whitened coordinates.
    """

    original: Target
    coordinates: Coordinates

    def values(self, sites: Sites) -> Sites:
        """Return constrained values of the sites."""
        leading = sites[COMPONENT].shape[:-1]
        flat = {name: x.flatten(0, len(leading) - 1) for name, x in sites.items()}
        back = torch.vmap(self.coordinates.sites)(flat)
        return self.original.values({name: x.reshape(*leading, *x.shape[1:]) for name, x in back.items()})


def from_mixture(mixture: GaussianMixture, full: Target) -> list[Target]:
    """Return the mixture and a target on the same sites, in the same whitened coordinates and base measures."""

    def density_of_mixture(sites: Sites) -> Tensor:
        return full.log_measure - mixture.log_density(sites)

    centres, roots = mixture.unconstrained()
    if not centres:
        return [_Drawn(density_of_mixture, full.manifolds, full.transforms, mixture.sample), full]
    coordinates = Coordinates(centres, roots)

    def draw() -> Sites:
        x = mixture.sample()
        return coordinates.whitened(x, int(mixture.each(x).argmax()))

    manifolds = {**full.manifolds, COMPONENT: Constant()}
    return [
        WhitenedTarget(
            partial(_within_region, mixture, coordinates, potential),
            manifolds,
            full.transforms,
            draw,
            full,
            coordinates,
        )
        for potential in (density_of_mixture, full.potential_fn)
    ]


def _within_region(
    mixture: GaussianMixture, coordinates: Coordinates, potential: PotentialFunction, z: Sites
) -> Tensor:
    x = coordinates.sites(z)
    if len(mixture.log_weights) == 1:
        return potential(x)
    each = mixture.each({name: value.detach() for name, value in x.items()})
    own = (coordinates.own(z) * each).sum()
    return potential(x) + _WALL * (own < each.max())
