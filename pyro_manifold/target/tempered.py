r"""Tempered targets: a path from one distribution to another, from the prior to the posterior, in one density.

.. math:: \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad U(x, \beta) = U_0(x) + \beta\,L(x),

:math:`U_0` minus the log prior density and L minus the log likelihood. The inverse temperature β is a site that never
moves (`pyro_manifold.manifolds.Constant`): an input of the traced graph like any other, so that the kernels of this
package take such a target as it is, and each chain can have its own β. The gradient with respect to β, which comes with
every evaluation, is L.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
from pyro import poutine
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.manifolds import Constant
from pyro_manifold.target.batched import PotentialFunction, Sites
from pyro_manifold.target.model import Program, Target

INVERSE_TEMPERATURE = "inverse temperature"
"""The name of the site β, ``(chains, 1)``; it has a space, as no site that a user names is likely to have."""


@dataclass
class TemperedTarget(Target):
    """A path between two distributions, with the site β.

    Attributes:
        draw_of_base: a draw of the one at β = 0.
        drawn: how often that was asked for: where the density at β = 1 is zero, a draw is replaced by another.
    """

    draw_of_base: Callable[[], Sites]
    drawn: int = 0

    def draw(self) -> Sites:
        """A draw at β = 0, of the target's sites and β."""
        self.drawn += 1
        sites = self.draw_of_base()
        sites[INVERSE_TEMPERATURE] = next(iter(sites.values())).new_zeros(1)
        return {name: sites[name] for name in sorted(sites)}

    def values(self, sites: Sites) -> Sites:
        """Sites as the model has them, without β."""
        return super().values({name: x for name, x in sites.items() if name != INVERSE_TEMPERATURE})


def tempered(base: Target, full: Target, draw: Callable[[], Sites] | None = None) -> TemperedTarget:
    """The path between two models on the same sites, β = 0 at ``base`` and 1 at ``full``.

    Args:
        base: where it begins.
        full: where it ends.
        draw: draws of ``base``; its own if None, which are exact for a prior with `init_to_sample`.
    """
    path = partial(_on_the_path, base.potential_fn, full.potential_fn)
    manifolds = {**full.manifolds, INVERSE_TEMPERATURE: Constant()}
    return TemperedTarget(path, manifolds, full.transforms, draw or base.draw)


def _on_the_path(base: PotentialFunction, full: PotentialFunction, sites: Sites) -> Tensor:
    inverse_temperature, sites = split(sites)
    share = inverse_temperature.squeeze(-1)
    # Not the difference of the two: where one is huge, that would round the other away.
    return (1 - share) * base(sites) + share * full(sites)


def split(sites: Sites) -> tuple[Tensor, Sites]:
    """β, and the sites of the model."""
    return sites[INVERSE_TEMPERATURE], {name: x for name, x in sites.items() if name != INVERSE_TEMPERATURE}


class WithoutLikelihood(Messenger):
    """The log density without that of observed sites and of factors.

    Args:
        keep: names of those that stay.
    """

    def __init__(self, keep: Collection[str] = ()) -> None:
        super().__init__()
        self._keep = keep

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if _is_likelihood(msg) and msg["name"] not in self._keep:
            msg["mask"] = False


def _is_likelihood(site: Any) -> bool:
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("_deterministic")


def likelihood_sites(program: Program) -> list[str]:
    """Names of the observed sites and factors of a model."""
    return list(_likelihood(program))


def factors(program: Program) -> list[str]:
    """Names of what a model adds to its log density by `pyro.factor`."""
    return [name for name, site in _likelihood(program).items() if isinstance(site["fn"], Unit)]


def _likelihood(program: Program) -> dict[str, Any]:
    with poutine.block(), pyro.validation_enabled(False):
        nodes = poutine.trace(program).get_trace().nodes
    return {name: site for name, site in nodes.items() if _is_likelihood(site)}
