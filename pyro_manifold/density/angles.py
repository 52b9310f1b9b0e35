"""Sites that may be angles with the support of all real numbers, whose density is then periodic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch.distributions import constraints

from pyro_manifold.density.distribution_parts import innermost
from pyro_manifold.distributions import of_elements

PERIODIC = (torch.distributions.VonMises, dist.SineBivariateVonMises, dist.SineSkewed)
"""Distributions of angles whose support is declared to be all real numbers, over which their densities are periodic."""


def possible_angles(nodes: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the sites of a trace whose prior has no constraint and is periodic, or flat."""
    kinds = (*PERIODIC, dist.ImproperUniform)
    return tuple(
        name
        for name in names
        if isinstance(innermost(nodes[name]["fn"]), kinds)
        and of_elements(nodes[name]["fn"].support) is constraints.real
    )
