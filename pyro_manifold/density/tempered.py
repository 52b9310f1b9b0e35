r"""Tempered targets: a path from one distribution to another, from the prior to the posterior, in one density.

$$ \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad U(x, \beta) = U_0(x) + \beta\,L(x), $$

$U_0$ minus the log prior density and L minus the log likelihood. The inverse temperature β is a site that never
moves (`pyro_manifold.manifolds.Constant`): an input of the traced graph like any other, so that the kernels of this
package sample such a target without changes, and each chain can have its own β. The gradient with respect to β, which
is part of every evaluation, is L.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyro
from pyro import poutine
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.density.batched import PotentialFunction, Sites
from pyro_manifold.density.sites import is_deterministic
from pyro_manifold.density.target import Target
from pyro_manifold.manifolds import Constant, Manifold

INVERSE_TEMPERATURE = "inverse temperature"
"""The name of the site β, ``(chains, 1)``; it contains a space, so that it is unlikely to be a user's site name."""


@dataclass
class TemperedTarget(Target):
    """A path between two distributions, with the site β.

    Attributes:
        draw_of_base: function that draws from the distribution at β = 0.
        full: the target at β = 1.
        drawn: number of calls of `draw`: if the density at β = 1 is zero, a draw is replaced by another.
    """

    draw_of_base: Callable[[], Sites]
    full: Target
    drawn: int = 0

    def present(self) -> Target:
        full = self.full.present()
        return replace(self, manifolds=_with_temperature(full.manifolds), transforms=full.transforms)

    def draw(self) -> Sites:
        """Return a draw at β = 0, of the target's sites and β."""
        self.drawn += 1
        sites = self.draw_of_base()
        sites[INVERSE_TEMPERATURE] = next(iter(sites.values())).new_zeros(1)
        return {name: sites[name] for name in sorted(sites)}

    def values(self, sites: Sites) -> Sites:
        """Return the sites as the model has them, without β."""
        return self.full.values({name: x for name, x in sites.items() if name != INVERSE_TEMPERATURE})

    @property
    def dependent(self) -> frozenset[str]:
        return self.full.dependent


def tempered(base: Target, full: Target, draw: Callable[[], Sites] | None = None) -> TemperedTarget:
    """Return the path between two models on the same sites, β = 0 at ``base`` and 1 at ``full``.

    Args:
        base: target at β = 0.
        full: target at β = 1.
        draw: function that draws from ``base``; its own if None, which is exact for a prior with `init_to_sample`.
    """
    path = partial(_on_the_path, base.potential_fn, full.potential_fn)
    return TemperedTarget(path, _with_temperature(full.manifolds), full.transforms, draw or base.draw, full)


def _with_temperature(manifolds: Mapping[str, Manifold]) -> dict[str, Manifold]:
    return {**manifolds, INVERSE_TEMPERATURE: Constant()}


def _on_the_path(base: PotentialFunction, full: PotentialFunction, sites: Sites) -> Tensor:
    inverse_temperature, sites = split(sites)
    share = inverse_temperature.squeeze(-1)
    # Not the difference of the two: if one is huge, the other would be lost by rounding.
    return (1 - share) * base(sites) + share * full(sites)


def split(sites: Sites) -> tuple[Tensor, Sites]:
    """Return β, and the sites of the model."""
    return sites[INVERSE_TEMPERATURE], {name: x for name, x in sites.items() if name != INVERSE_TEMPERATURE}


class WithoutLikelihood(Messenger):
    """Handler that removes the log density of observed sites and of factors.

    Args:
        keep: names of those that are kept.
    """

    def __init__(self, keep: Collection[str] = ()) -> None:
        super().__init__()
        self._keep = keep

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if _is_likelihood(msg) and msg["name"] not in self._keep:
            msg["mask"] = False


def _is_likelihood(site: Any) -> bool:
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("_deterministic")


def likelihood_sites(program: Callable[[], Any]) -> list[str]:
    """Return the names of the observed sites and factors of a model."""
    return list(_likelihood(program))


def factors(program: Callable[[], Any]) -> list[str]:
    """Return the names of the `pyro.factor` sites of a model."""
    return [name for name, site in _likelihood(program).items() if isinstance(site["fn"], Unit)]


def _likelihood(program: Callable[[], Any]) -> dict[str, Any]:
    with poutine.block(), pyro.validation_enabled(False):
        nodes = poutine.trace(program).get_trace().nodes
    found = {name: site for name, site in nodes.items() if _is_likelihood(site)}
    # A site that a handler computes from others has a density where its map has a Jacobian.
    return {name: site for name, site in found.items() if not is_deterministic(site) or _has_density(site)}


def _has_density(site: Any) -> bool:
    return bool((site["fn"].log_prob(site["value"]) != 0).any())
