"""Minibatches: a model's density on a part of its data, as a function of sites and of tensors that change each step.

A batch is ``{name: tensor}``: the indices of each plate that draws a subsample, and the model's arguments if they
come from a loader. They are inputs of the traced potential, so that a new batch needs no new trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from pyro_manifold.density.batched import Batch, BatchPotential, PotentialFunction, Sites

Plates = dict[str, tuple[int, int]]
"""``{plate: (size, subsample size)}`` of plates that draw fewer elements than they have."""


@dataclass(frozen=True)
class Minibatch:
    """A model's density on batches of one shape.

    Attributes:
        potential_fn: potential energy of one chain on a batch: minus an unbiased estimate of the log density.
        plates: plates whose indices the batch has.
    """

    potential_fn: BatchPotential
    plates: Plates


MinibatchOf = Callable[[Batch], Minibatch]
"""Function from the arguments of a loader (none, if only plates subsample) to the density on such batches."""


class Subsample(Messenger):
    """Handler by which subsampling plates use these indices instead of random ones.

    Args:
        batch: ``{plate: indices}``.
        weight: additional factor of the scale of sites in subsampled plates.
    """

    def __init__(self, batch: Mapping[str, Tensor], weight: float = 1.0) -> None:
        super().__init__()
        self._batch, self._weight = batch, weight

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if self._weight != 1 and in_minibatches(msg):
            msg["scale"] = msg["scale"] * self._weight
        if msg["name"] in self._batch and poutine.util.site_is_subsample(msg):
            msg["value"], msg["done"] = self._batch[msg["name"]], True
            msg["fn"] = _Subsample(msg["fn"].size, None)  # Pyro's MCMC raises an error for a plate that draws indices


class PlatesUntraced(Messenger):
    """Handler by which traces have no indices of plates, whose log density of zero would give all others its dtype.

    It has torch's default dtype, so that a model in float32 would be sampled in float64 where that is the default.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if poutine.util.site_is_subsample(msg):
            msg["infer"] = {**msg["infer"], "_do_not_trace": True, "is_auxiliary": True}


def on_all_data(potential_fn: PotentialFunction) -> Minibatch:
    """Return a density whose one batch is ``{}``, all data."""
    return Minibatch(partial(_on_all_data, potential_fn), {})


def _on_all_data(potential_fn: PotentialFunction, sites: Sites, batch: Batch) -> Tensor:
    return potential_fn(sites)


def with_subsample(potential_fn: PotentialFunction) -> BatchPotential:
    """Return the potential as a function of the sites and of the indices of its plates."""
    return partial(_on_subsample, potential_fn)


def _on_subsample(potential_fn: PotentialFunction, sites: Sites, batch: Batch) -> Tensor:
    with Subsample(batch):
        return potential_fn(sites)


def drawn_plates(trace: poutine.Trace) -> Plates:
    """Return the plates of a trace that draw fewer elements than they have."""
    plates: Plates = {}
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and poutine.util.site_is_subsample(site):
            size, drawn = site["fn"].size, site["fn"].subsample_size
            if drawn is not None and drawn < size:
                plates[name] = (size, drawn)
    return plates


def check_subsampled(trace: poutine.Trace, plates: Plates) -> None:
    """Check that a density can be estimated from a subsample of these plates.

    Raises:
        ValueError: if a site within such a plate is sampled, since its elements would change at each step; or if a
            discrete site is summed out, since Pyro scales densities before it sums them.
    """
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    summed_out = [name for name, site in sites.items() if site["infer"].get("enumerate") and not site["is_observed"]]
    for name, site in sites.items():
        within = [frame.name for frame in site["cond_indep_stack"] if frame.name in plates]
        latent = not site["is_observed"] and not poutine.util.site_is_subsample(site)
        if within and latent and name not in summed_out:
            raise ValueError(
                f"Site '{name}' is sampled in the plate '{within[0]}', which draws {plates[within[0]][1]} of "
                f"{plates[within[0]][0]} elements at each step: write its sum or integral into the likelihood (such as "
                "MixtureSameFamily), or let the plate have all of its elements."
            )
    if plates and summed_out:
        raise ValueError(
            f"Site '{summed_out[0]}' is summed out by Pyro, and the plate '{next(iter(plates))}' draws a part of its "
            "elements: the sum would be over scaled densities, which is another posterior. Write the sum into the "
            "likelihood (such as MixtureSameFamily), or let the plate have all of its elements."
        )


def in_minibatches(site: Mapping[str, Any]) -> bool:
    """Return whether a site is in a plate that uses a subsample of its elements in each run."""
    return any(frame.full_size not in (None, frame.size) for frame in site["cond_indep_stack"])


def shapes_of(batch: Batch) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """Return the names, shapes and dtypes of a batch, for which a graph is specialised."""
    return tuple((name, value.shape, value.dtype) for name, value in batch.items())
