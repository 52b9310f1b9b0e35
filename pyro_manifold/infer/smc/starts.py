"""What goes on from the particles: the next path, and chains of `MCMC`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.smc.annealing import Particles
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Target


def draws_of(particles: Particles) -> Callable[[], Sites]:
    """Draws that go through the runs as chains do, the first of each chain's at random."""
    runs, chains = next(iter(particles.sites.values())).shape[:2]
    flat = {name: x.flatten(0, 1) for name, x in particles.sites.items()}
    places = itertools.cycle(range(runs * chains))

    def draw() -> Sites:
        place = next(places)
        return {name: x[place, int(torch.randint(x.shape[1], ()))] for name, x in flat.items()}

    return draw


def starts_of_chains(samples: Sites, num_chains: int, target: Target) -> Sites:
    """So many different particles at random, in the coordinates in which chains move.

    Raises:
        ValueError: unless there are as many particles.
    """
    check_positive_integer(num_chains=num_chains)
    flat = {name: x.flatten(0, 1) for name, x in samples.items()}
    first = next(iter(flat.values()))
    if num_chains > len(first):
        raise ValueError(f"num_chains={num_chains}, but there are {len(first)} particles to begin at.")
    chosen = torch.randperm(len(first))[:num_chains].to(first.device)
    found = target.positions({name: x[chosen] for name, x in flat.items()})
    return {name: x[0] for name, x in found.items()} if num_chains == 1 else found
