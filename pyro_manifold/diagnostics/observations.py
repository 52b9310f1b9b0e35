"""Sites of a trace that have data, and which of their entries no mask hides."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_manifold.compiled import broadcast_shapes
from pyro_manifold.density import masks
from pyro_manifold.diagnostics.replay import Node


def are_observations(site: Node) -> Tensor:
    """Return for which entries of the log density of a site any part of the event is not masked, of that shape.

    Masks are those of handlers, such as `poutine.mask` and ``obs_mask``, and of distributions within others, such as
    ``dist.Normal(...).mask(seen).to_event(1)``.
    """
    distribution, value = site["fn"], site["value"]
    shown = torch.ones(broadcast_shapes(distribution.shape(), value.shape), dtype=torch.bool, device=value.device)
    for mask in masks({**site, "value": value.expand(shown.shape)}, shown):
        shown = shown & mask
    batch = shown.dim() - distribution.event_dim
    events = shown.flatten(batch).any(-1) if distribution.event_dim else shown
    return events.expand(broadcast_shapes(events.shape, site["unscaled_log_prob"].shape))


def is_factor(site: Node) -> bool:
    """Return whether a site of a trace adds to the density and has no data, as one of `pyro.factor` does."""
    if site["type"] != "sample" or not site["is_observed"] or site["infer"].get("_deterministic"):
        return False
    if not torch.as_tensor(True if site["mask"] is None else site["mask"]).any():
        return False
    distribution = site["fn"]
    while isinstance(distribution, dist.Independent):
        distribution = distribution.base_dist
    # A `Delta` with a density is a site that a handler has computed, such as that of NeuTra.
    return isinstance(distribution, dist.Unit)
