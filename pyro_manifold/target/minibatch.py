"""Minibatches: a model's density on a part of its data, as a function of sites and of tensors that change each step.

A batch is ``{name: tensor}``: the indices of each plate that draws a subsample, and the model's arguments where those
come from a loader. They are inputs of the traced potential, so that a new batch traces nothing.
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

from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import Batch, BatchedPotential, BatchPotential, PotentialFunction, Sites

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
"""From the arguments that a loader gives (none, if data come by plates alone) to the density on such batches."""


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
    return partial(_on_subsample, potential_fn)


def _on_subsample(potential_fn: PotentialFunction, sites: Sites, batch: Batch) -> Tensor:
    with Subsample(batch):
        return potential_fn(sites)


def subsampled_plates(trace: poutine.Trace) -> Plates:
    """Plates of a trace that draw fewer elements than they have.

    Raises:
        ValueError: if a site within such a plate is sampled: it would be another one at each step; or if a discrete
            site is summed out, for Pyro scales before it sums, and the sum of scaled densities is another density.
    """
    plates: Plates = {}
    summed_out = [
        name
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and site["infer"].get("enumerate") and not site["is_observed"]
    ]
    for name, site in trace.nodes.items():
        if site["type"] != "sample":
            continue
        if poutine.util.site_is_subsample(site):
            size, drawn = site["fn"].size, site["fn"].subsample_size
            if drawn is not None and drawn < size:
                plates[name] = (size, drawn)
            continue
        within = [frame.name for frame in site["cond_indep_stack"] if frame.name in plates]
        if within and not site["is_observed"] and name not in summed_out:
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
    return plates


def in_minibatches(site: Mapping[str, Any]) -> bool:
    """Whether a site is in a plate that has a part of its elements at each run."""
    return any(frame.full_size not in (None, frame.size) for frame in site["cond_indep_stack"])


def shapes_of(batch: Batch) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """What a graph is made for: names, shapes and dtypes."""
    return tuple((name, value.shape, value.dtype) for name, value in batch.items())


class MinibatchPotential:
    """Potential energy and gradient of many chains on the batch of a step; one graph for each shape of batches.

    Args:
        minibatch_of: the density on batches like the arguments that it is given.
        batches: the batch of a step, by the step's number.
        example: positions of all chains.
        manifolds: of the sites that have one.
        own: whether each chain has a batch of its own, with a leading chain dimension, or all have the same.
        compile: options for `torch.compile`, if graphs are to be compiled; None if not.
        warn: whether to say so when the density cannot be traced.

    Attributes:
        batches: as given.
        graphs: ``{shapes of a batch: potential}``.
    """

    def __init__(
        self,
        minibatch_of: MinibatchOf,
        batches: Callable[[int], Batch],
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        own: bool = False,
        compile: Mapping[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        self._minibatch_of, self.batches = minibatch_of, batches
        self._example, self._manifolds, self._own = example, manifolds, own
        self._options: Any = {"compile": compile, "warn": warn}
        self.graphs: dict[Any, BatchedPotential] = {}
        self._first = self._on(batches(0))

    def __call__(self, sites: Sites, step: int = 0) -> tuple[Tensor, Sites]:
        return self.on(sites, self.batches(step))

    def on(self, sites: Sites, batch: Batch) -> tuple[Tensor, Sites]:
        """The same on a given batch."""
        return self._on(batch)(sites, batch)

    @property
    def first(self) -> BatchedPotential:
        """The potential of batches of the first shape."""
        return self._first

    @property
    def graph(self) -> Trusted:
        """The function in use for batches of the first shape."""
        return self._first.graph

    def difference_at(self, sites: Sites, chains: list[int], step: int = 0) -> str | None:
        """What the graph has different from the model where these chains are, on the batch of a step."""
        batch = self.batches(step)
        return self._on(batch).difference_at(sites, chains, batch)

    def _on(self, batch: Batch) -> BatchedPotential:
        shapes = shapes_of(batch)
        if shapes not in self.graphs:
            one = {name: value[0] for name, value in batch.items()} if self._own else batch
            self.graphs[shapes] = BatchedPotential(
                self._minibatch_of(one).potential_fn,
                self._example,
                self._manifolds,
                batch=batch,
                own_batches=self._own,
                **self._options,
            )
        potential = self.graphs[shapes]
        if len(self.graphs) > 1 and not self._first.graph.is_graph and potential.graph.is_graph:
            potential.graph.forget()  # a branch on values that one graph has frozen, the others have too
        return potential


class WholeData:
    """A potential of all data, asked at a step as a `MinibatchPotential` is; the step makes no difference.

    Args:
        potential: of all data.
    """

    batches = None

    def __init__(self, potential: BatchedPotential) -> None:
        self._potential = potential

    def __call__(self, sites: Sites, step: int = 0) -> tuple[Tensor, Sites]:
        return self._potential(sites)

    def on(self, sites: Sites, batch: Batch) -> tuple[Tensor, Sites]:
        """The same: no batch makes a difference."""
        return self._potential(sites)

    @property
    def first(self) -> BatchedPotential:
        """The potential."""
        return self._potential

    def difference_at(self, sites: Sites, chains: list[int], step: int = 0) -> str | None:
        """As `BatchedPotential.difference_at`."""
        return self._potential.difference_at(sites, chains)
