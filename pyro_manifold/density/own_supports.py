"""Supports that distributions of the user declare, compared with the distributions by which they compute densities."""

from __future__ import annotations

from copy import copy
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution, transform_to

from pyro_manifold.density.distribution_parts import parts, with_parts

_LIBRARIES = {"torch", "pyro", "pyro_manifold"}
_POINTS = 16


def is_own(distribution: Any) -> bool:
    """Return whether a distribution, or one that it wraps, is of a class that no library here defines."""
    return any(type(part).__module__.partition(".")[0] not in _LIBRARIES for part in parts(distribution))


def too_wide(trace: poutine.Trace) -> list[str]:
    """Return a sentence for each latent site whose density comes from a distribution outside of its support.

    Distributions of Pyro have finite densities there, by their formulas, unless they validate their values.
    """
    sentences = []
    for name, site in trace.nodes.items():
        reason = _objection(site["fn"], site["value"]) if _may_be_too_wide(site) else None
        if reason:
            sentences.append(
                f"Site '{name}': {type(site['fn']).__name__} declares the support {site['fn'].support}, and computes "
                f"its density by a distribution outside of that one's support ({reason}): declare it as narrow "
                "as it is, such as constraints.greater_than(bound)."
            )
    return sentences


def _may_be_too_wide(site: dict[str, Any]) -> bool:
    latent = site["type"] == "sample" and not site["is_observed"] and isinstance(site["fn"], Distribution)
    return latent and is_own(site["fn"]) and not site["fn"].has_enumerate_support


def _objection(distribution: Any, like: Tensor) -> str | None:
    """Return what validation objects to at a point of the declared support where the density is finite."""
    noise, validated = torch.Generator().manual_seed(0), _validated(distribution)
    try:
        to_support = transform_to(distribution.support)
        shape = to_support.inverse_shape(distribution.shape())
        points = [to_support(torch.randn(shape, generator=noise).to(like)) for _ in range(_POINTS)]
        with pyro.validation_enabled(False), torch.no_grad():
            points = [x for x in points if distribution.log_prob(x).isfinite().all()]
    except (NotImplementedError, ValueError):  # nothing is known of its support
        return None
    for x in points:
        try:
            with pyro.validation_enabled(True), torch.no_grad():
                validated.log_prob(x)
        except ValueError as error:
            return str(error).strip().partition(", but found")[0].partition("\n")[0]
    return None


def _validated(distribution: Any) -> Any:
    found = copy(with_parts(distribution, _validated))
    found._validate_args = True
    return found
