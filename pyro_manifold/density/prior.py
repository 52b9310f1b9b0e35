"""Density of a model's latent sites alone, without its data."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pyro_manifold.density.batched import Batch, BatchPotential, Sites
from pyro_manifold.density.batched_density import BatchedDensity
from pyro_manifold.density.batches import Batches
from pyro_manifold.density.minibatch import Minibatch, on_all_data
from pyro_manifold.density.target import Target
from pyro_manifold.density.tempered import WithoutLikelihood


def prior_density(target: Target, example: Sites, batch: Batch, warn: bool = True) -> BatchedDensity:
    """Return minus the log density of a model's latent sites, with the Jacobian of transforms, and its gradient.

    Observed sites and factors do not contribute.

    Args:
        target: target of a Pyro model.
        example: positions of all chains.
        batch: a batch of one chain, with which the model can run.
        warn: whether to warn if the density cannot be traced.
    """
    latent = [*target.manifolds, *target.transforms]  # observed as well, at the positions of the chains
    of_one_chain = partial(_without_likelihood, target.on(batch).potential_fn, latent, batch)

    def of_any(_: Batch) -> Minibatch:
        return on_all_data(of_one_chain)

    return BatchedDensity(of_any, Batches(), example, target.manifolds, warn=warn)


def _without_likelihood(potential_fn: BatchPotential, latent: list[str], batch: Batch, sites: Sites) -> Tensor:
    with WithoutLikelihood(latent):
        return potential_fn(sites, batch)
