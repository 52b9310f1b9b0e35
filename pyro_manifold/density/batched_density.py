"""Energies and gradients of many chains on a batch, with a graph for each shape of batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from pyro_manifold.compiled import Verified
from pyro_manifold.density.batched import Batch, BatchedPotential, Sites
from pyro_manifold.density.batches import Batches
from pyro_manifold.density.minibatch import MinibatchOf, shapes_of
from pyro_manifold.manifolds import Manifold


class BatchedDensity:
    """Potential energy and gradient of many chains on a batch; one graph for each shape of batches.

    Args:
        minibatch_of: function from a batch to the density on batches of its shapes.
        batches: function from the number of a step to its batch; ``{}`` is the batch of all data.
        example: positions of all chains.
        manifolds: manifolds of the sites that have one.
        undifferentiated: sites with respect to which no gradient is needed; it is reported as 0.
        own: whether each chain has a batch of its own, with a leading chain dimension, or all have the same.
        gradient: whether to compute gradients; if not, the density need not be differentiable.
        compile: options for `torch.compile`, if graphs are to be compiled; None if not.
        warn: whether to warn if the density cannot be traced.
        native: whether long graphs are compiled as C, to be evaluated but not transformed.

    Attributes:
        batches: the argument ``batches``.
        graphs: ``{shapes of a batch: potential}``.
        first: the potential of batches of the first shape.
    """

    def __init__(
        self,
        minibatch_of: MinibatchOf,
        batches: Batches,
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        undifferentiated: Collection[str] = (),
        own: bool = False,
        gradient: bool = True,
        compile: Mapping[str, Any] | None = None,
        warn: bool = True,
        native: bool = False,
    ) -> None:
        self._minibatch_of, self.batches = minibatch_of, batches
        self._example, self._manifolds, self._own = example, manifolds, own
        self._options: Any = {
            "undifferentiated": undifferentiated,
            "gradient": gradient,
            "compile": compile,
            "warn": warn,
            "native": native,
        }
        self.graphs: dict[Any, BatchedPotential] = {}
        self.first = self._on(batches(0))

    def __call__(self, sites: Sites, batch: Batch | None = None) -> tuple[Tensor, Sites]:
        """Return energies ``(chains,)`` and gradients on a batch; on the first one if None."""
        batch = self.batches(0) if batch is None else batch
        return self._on(batch)(sites, batch)

    @property
    def graph(self) -> Verified:
        """The function in use for batches of the first shape."""
        return self.first.graph

    def difference_at(self, sites: Sites, chains: list[int], batch: Batch | None = None) -> str | None:
        """Describe how the graph differs from the model at these chains, on a batch; None if it agrees."""
        batch = self.batches(0) if batch is None else batch
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
        if len(self.graphs) > 1 and not self.first.graph.is_graph and potential.graph.is_graph:
            # A branch on values that is frozen in one graph is frozen in the others too.
            potential.graph.use_reference()
        return potential
