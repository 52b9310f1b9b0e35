"""Supports that distributions of the user declare, compared with the distributions by which they compute densities."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution, transform_to

from pyro_manifold.density.distribution_parts import parts, with_parts
from pyro_manifold.density.validation import unvalidated

_LIBRARIES = {"torch", "pyro", "pyro_manifold"}
_POINTS = 16


def is_own(distribution: Any) -> bool:
    """Return whether a distribution, or one that it wraps, is of a class that no library here defines."""
    return any(type(part).__module__.partition(".")[0] not in _LIBRARIES for part in parts(distribution))


def too_wide(trace: poutine.Trace) -> list[str]:
    """Return a sentence for each latent site whose density comes from a distribution outside of its support.

    Distributions of Pyro have finite densities there, by their formulas. Those that a class keeps as attributes are
    looked at, and not those that it makes for a value.
    """
    sentences = []
    for name, site in trace.nodes.items():
        if _may_be_too_wide(site) and _uses_values_outside(site["fn"], site["value"]):
            kind, support = type(site["fn"]).__name__, site["fn"].support
            sentences.append(
                f"Site '{name}': {kind} declares the support {support}, and computes its density by a distribution "
                "outside of that one's support: declare it as narrow as it is, such as constraints.greater_than(bound)."
            )
    return sentences


def _may_be_too_wide(site: dict[str, Any]) -> bool:
    latent = site["type"] == "sample" and not site["is_observed"] and isinstance(site["fn"], Distribution)
    return latent and is_own(site["fn"]) and not site["fn"].has_enumerate_support


def _uses_values_outside(distribution: Any, like: Tensor) -> bool:
    """Return whether a density that is finite at a point of the support needs another one outside of its support."""
    distribution, noise = unvalidated(distribution), torch.Generator().manual_seed(0)
    marked = with_parts(distribution, _nan_outside)
    if marked is distribution:
        return False
    try:
        to_support = transform_to(distribution.support)
        shape = to_support.inverse_shape(distribution.shape())
        with torch.no_grad():
            points = [to_support(torch.randn(shape, generator=noise).to(like)) for _ in range(_POINTS)]
            return any(distribution.log_prob(x).isfinite().all() and marked.log_prob(x).isnan().any() for x in points)
    except Exception:  # a class of the user can fail in any way, as at points where no chain goes
        return False


def _nan_outside(distribution: Any) -> Any:
    """Return a distribution whose density is NaN outside of its support."""
    found = copy(with_parts(distribution, _nan_outside))
    density, support = found.log_prob, distribution.support

    def log_prob(value: Tensor) -> Tensor:
        inside = support.check(value)
        return torch.where(inside, density(value), torch.nan)

    found.log_prob = log_prob
    return found
