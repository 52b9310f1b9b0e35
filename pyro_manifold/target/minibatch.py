"""Minibatches: a model's density on a part of its data, as a function of sites and of tensors that change each step.

A batch is ``{name: tensor}``: the indices of each plate that draws a subsample, or the tensors among a model's
arguments. They are inputs of the traced potential, so that a new batch traces nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import Batch, BatchedPotential, BatchPotential, PotentialFunction, Sites


@dataclass(frozen=True)
class Minibatch:
    """What of a target changes from step to step.

    Attributes:
        potential_fn: potential energy of one chain on a batch: minus an unbiased estimate of the log density.
        plates: ``{plate: (size, subsample size)}`` of the plates whose indices the batch has.
    """

    potential_fn: BatchPotential
    plates: dict[str, tuple[int, int]]


class Subsample(Messenger):
    """Plates that subsample take these indices, in place of drawing some.

    Args:
        batch: ``{plate: indices}``.
    """

    def __init__(self, batch: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._batch = batch

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self._batch and poutine.util.site_is_subsample(msg):
            msg["value"], msg["done"] = self._batch[msg["name"]], True
            msg["fn"] = _Subsample(msg["fn"].size, None)  # Pyro's MCMC refuses a plate that would draw


def with_subsample(potential_fn: PotentialFunction) -> BatchPotential:
    """The potential as a function of the indices of its plates too."""

    def potential(sites: Sites, batch: Batch) -> Tensor:
        with Subsample(batch):
            return potential_fn(sites)

    return potential


def subsampled_plates(trace: poutine.Trace) -> dict[str, tuple[int, int]]:
    """``{plate: (size, subsample size)}`` of the plates of a trace that draw fewer elements than they have.

    Raises:
        ValueError: if a site within such a plate is sampled: it would be another one at each step.
    """
    plates = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample":
            continue
        if poutine.util.site_is_subsample(site):
            size, drawn = site["fn"].size, site["fn"].subsample_size
            if drawn is not None and drawn < size:
                plates[name] = (size, drawn)
            continue
        within = [frame.name for frame in site["cond_indep_stack"] if frame.name in plates]
        if within and not site["is_observed"] and not site["infer"].get("enumerate"):
            raise ValueError(
                f"Site '{name}' is sampled in the plate '{within[0]}', which draws {plates[within[0]][1]} of "
                f"{plates[within[0]][0]} elements at each step: sum it out, or let the plate have all of its elements."
            )
    return plates


class MinibatchPotential:
    """Potential energy and gradient of many chains on a batch; one graph for each set of shapes that batches have.

    Args:
        potential_fn: of one chain.
        example: positions of all chains.
        manifolds: of the sites that have one.
        own: whether each chain has a batch of its own, with a leading chain dimension, or all have the same.
        warn: whether to say so when the density cannot be traced.

    Attributes:
        graphs: ``{shapes of a batch: potential}``.
    """

    def __init__(
        self,
        potential_fn: BatchPotential,
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        own: bool = False,
        warn: bool = True,
    ) -> None:
        self._potential_fn, self._example, self._manifolds = potential_fn, example, manifolds
        self._own, self._warn = own, warn
        self.graphs: dict[tuple[torch.Size, ...], BatchedPotential] = {}

    def __call__(self, sites: Sites, batch: Batch) -> tuple[Tensor, Sites]:
        shapes = tuple(value.shape for value in batch.values())
        if shapes not in self.graphs:
            self.graphs[shapes] = BatchedPotential(
                self._potential_fn, self._example, self._manifolds, batch=batch, own_batches=self._own, warn=self._warn
            )
        return self.graphs[shapes](sites, batch)
