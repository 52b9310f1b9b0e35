r"""Targets in coordinates that suit the Gaussians of a mixture: each particle has those of the one that it is about.

The space is divided: a point belongs to the Gaussian that has the largest share in the mixture's density there. A chain
never leaves the region that it begins in, beyond which its density is zero, and moves in coordinates z that are
whitened for the Gaussian k of this region,

.. math:: x = m_k + L_k z,

:math:`L_k L_k^\top` the covariance, x the unconstrained sites one after the other. A transition that keeps the
distribution within each region keeps it as a whole; what share each region has, weights and resampling say. k is a site
that never moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.infer.smc.modes import GaussianMixture
from pyro_manifold.manifolds import Constant
from pyro_manifold.target.batched import PotentialFunction, Sites
from pyro_manifold.target.model import Target

COMPONENT = "component of the mixture"
"""The name of the site k, ``(chains, 1)``."""

_WALL = 1e10  # nats


class Coordinates:
    """Unconstrained sites of one point, from coordinates z about one of some centres, and back.

    Args:
        centres: ``{site: (k, ...)}``, of unconstrained sites only.
        roots: L, ``(k, size, size)``, of these sites in their order.
    """

    def __init__(self, centres: Sites, roots: Tensor) -> None:
        self._shapes = {name: x.shape[1:] for name, x in centres.items()}
        self._centres = torch.cat([x.reshape(len(x), -1) for x in centres.values()], 1)
        self._roots, self._inverses = roots, torch.linalg.inv(roots)

    def sites(self, z: Sites) -> Sites:
        """From z, with the site k, to x; sites on manifolds stay as they are."""
        own = self.own(z)
        root, centre = (own[:, None, None] * self._roots).sum(0), (own[:, None] * self._centres).sum(0)
        return self._with(z, root @ self._flat(z) + centre)

    def whitened(self, x: Sites, k: int) -> Sites:
        """From x to z, with the site k."""
        sites = self._with(x, self._inverses[k] @ (self._flat(x) - self._centres[k]))
        return {**sites, COMPONENT: self._centres.new_full((1,), k)}

    def own(self, z: Sites) -> Tensor:
        """1 for the Gaussian of the point, and 0 for the others, ``(k,)``."""
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
    """A distribution to begin with."""

    sample: Callable[[], Sites]

    def draw(self) -> Sites:
        return self.sample()


@dataclass
class WhitenedTarget(_Drawn):
    """A distribution in whitened coordinates.

    Attributes:
        original: the same of the sites themselves.
        coordinates: where these are.
    """

    original: Target
    coordinates: Coordinates

    def values(self, sites: Sites) -> Sites:
        """Sites as the model has them."""
        leading = sites[COMPONENT].shape[:-1]
        flat = {name: x.flatten(0, len(leading) - 1) for name, x in sites.items()}
        back = torch.vmap(self.coordinates.sites)(flat)
        return self.original.values({name: x.reshape(*leading, *x.shape[1:]) for name, x in back.items()})


def from_mixture(mixture: GaussianMixture, full: Target) -> list[Target]:
    """The mixture and a target on the same sites, in the same whitened coordinates."""

    def density_of_mixture(sites: Sites) -> Tensor:
        return -mixture.log_density(sites)

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
