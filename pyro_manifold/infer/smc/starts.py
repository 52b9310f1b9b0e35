"""Particles as initial values of the next annealing path, and of chains of `MCMC`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc import check_positive_integer
from pyro_manifold.infer.smc.annealing import Particles


def draws_of(particles: Particles) -> Callable[[], Sites]:
    """Return a function that draws random particles, one per call, cycling through the chains of all runs."""
    runs, chains = next(iter(particles.sites.values())).shape[:2]
    flat = {name: x.flatten(0, 1) for name, x in particles.sites.items()}
    places = itertools.cycle(range(runs * chains))

    def draw() -> Sites:
        place = next(places)
        return {name: x[place, int(torch.randint(x.shape[1], ()))] for name, x in flat.items()}

    return draw


def starts_of_chains(samples: Sites, num_chains: int, target: Target) -> Sites:
    """Choose distinct particles at random as initial values of chains, in the coordinates in which chains move.

    Raises:
        ValueError: if there are fewer particles than chains.
    """
    check_positive_integer(num_chains=num_chains)
    flat = {name: x.flatten(0, 1) for name, x in samples.items()}
    first = next(iter(flat.values()))
    if num_chains > len(first):
        raise ValueError(f"num_chains={num_chains}, expected at most the number of particles, {len(first)}.")
    chosen = torch.randperm(len(first))[:num_chains].to(first.device)
    found = target.positions({name: x[chosen] for name, x in flat.items()})
    return {name: x[0] for name, x in found.items()} if num_chains == 1 else found
