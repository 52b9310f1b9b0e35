"""A short descent for chains whose random starts are far from where they belong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points
from pyro_manifold.infer.descent.quasi_newton import QuasiNewton
from pyro_manifold.infer.mcmc.states import Block, Blocks, Potential
from pyro_manifold.manifolds import Manifold

_MOST_EVALUATIONS = 200
_MOST_BYTES = 2**28  # of all places that a descent remembers
_BETWEEN_LOOKS = 12  # evaluations


def nearer_starts(position: Blocks, potential: Potential, manifolds: Mapping[Block, Manifold]) -> Blocks:
    r"""Where chains begin instead, if they would have to creep from where they are.

    A posterior of d coordinates has its draws about d/2 above its lowest energy, and Hamiltonian Monte Carlo comes down
    from ten times as high in a few trajectories. A start that is thousands of times as high makes it creep, by steps
    that suit the slope there. So each chain goes down by itself (L-BFGS along the manifold), and

    - a chain whose energy fell by less than :math:`10 d + 500` stays where it was: all starts of a posterior like a
      mixture do, and find its modes from there as ever;
    - else it begins where its descent first came within d of where that ended, as high as its draws will be: not in
      the mode itself, which can be a narrow place;
    - all stay where they were if a descent did not come to rest, or came to rest :math:`10 d + 500` above the lowest:
      then there are funnels, where the density has no bound, or valleys that no draw belongs to.

    Each chain descends by itself: starts in different valleys end in different valleys.

    Args:
        position: of all chains.
        potential: energies and gradients.
        manifolds: of the blocks that have one.
    """
    points = Points(position, potential, manifolds)
    size = max(1, next(iter(position.values())).element_size() * sum(x.numel() for x in position.values()))
    places, energies = _descent(points, position, min(_MOST_EVALUATIONS, _MOST_BYTES // size))
    coordinates = places.shape[-1]
    high, end = 10 * coordinates + 500, energies[-1]
    far = energies[0] - end > high
    at_rest = energies[-min(_BETWEEN_LOOKS, len(energies))] - end < _worth_going_on(coordinates)
    if not bool(far.any() & (at_rest & (end - end.min() < high)).all()):
        return position
    first = (energies <= end + coordinates).to(torch.uint8).argmax(0)
    chosen = places[torch.where(far, first, 0), torch.arange(len(first), device=first.device)]
    return points.parts(chosen)


def _descent(points: Points[Block], position: Blocks, most: int) -> tuple[Tensor, Tensor]:
    """All places ``(evaluations, chains, coordinates)``, and their energies."""
    descent = QuasiNewton(points)
    state = descent.begin(points.rows(position))
    places, energies = [state.at], [state.energy]
    while len(places) < most:
        state = descent.advance(state)
        places.append(state.at)
        energies.append(state.energy)
        if len(places) % _BETWEEN_LOOKS == 0 and not _pays(energies, state.at.shape[1]):
            break
    return torch.stack(places), torch.stack(energies)


def _pays(energies: list[Tensor], coordinates: int) -> bool:
    """Whether a chain still falls; at the first look, whether one has fallen as if it came from far."""
    enough = coordinates + 10 if len(energies) == _BETWEEN_LOOKS else _worth_going_on(coordinates)
    return bool((energies[-_BETWEEN_LOOKS] - energies[-1] > enough).any())


def _worth_going_on(coordinates: int) -> float:
    return max(0.5, coordinates / 10)
