"""Kinds of sites in a trace: sampled, observed, or functions of the sites that are sampled.

The last are those of `pyro.deterministic`, and those with the distribution `pyro.distributions.Delta`.

Handlers such as `poutine.reparam` sample another site in the place of one of the model, and turn that one into a
`Delta` at a function of the draws. It is neither sampled nor data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro import poutine
from pyro.distributions import Delta, Unit
from pyro.poutine.messenger import Messenger

from pyro_manifold.density.distribution_parts import parts


def is_point_mass(distribution: Any) -> bool:
    """Return whether a distribution is a `Delta`, also if it is masked, expanded, independent or transformed."""
    return any(isinstance(part, Delta) for part in parts(distribution))


def is_deterministic(site: Mapping[str, Any]) -> bool:
    """Return whether the value of a site of a trace is computed by the model, and neither sampled nor observed."""
    if site["type"] != "sample":
        return False
    return bool(site["infer"].get("_deterministic")) or is_point_mass(site["fn"])


def latent_sites(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sites of a trace that are sampled and not observed, without the indices of subsamples."""
    return {name: site for name, site in nodes.items() if _is_sampled(site) and not site["is_observed"]}


def is_latent(site: Mapping[str, Any]) -> bool:
    """Return whether a site of a trace is sampled and not observed."""
    return _is_sampled(site) and not site["is_observed"] and not is_deterministic(site)


def has_data(site: Mapping[str, Any]) -> bool:
    """Return whether a site of a trace is observed and has data; `pyro.factor` is observed too, but has none."""
    return (
        _is_sampled(site)
        and site["is_observed"]
        and not site["infer"].get("is_auxiliary")
        and not is_deterministic(site)
        and not isinstance(site["fn"], Unit)
    )


def _is_sampled(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not poutine.util.site_is_subsample(site)


class ComputePointMasses(Messenger):
    """Handler that gives a latent site with the distribution `Delta` its only value, so that it is not sampled."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"] and is_point_mass(msg["fn"]):
            msg["value"], msg["is_observed"] = msg["fn"].rsample(), True
