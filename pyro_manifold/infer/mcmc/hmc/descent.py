"""Short initial descent of chains whose random initial values are far from the typical set."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points
from pyro_manifold.infer.descent.quasi_newton import QuasiNewton
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks, Potential
from pyro_manifold.manifolds import Manifold

_MOST_EVALUATIONS = 200
_MOST_BYTES = 2**28  # memory for all positions of a descent
_BETWEEN_CHECKS = 12  # evaluations between convergence checks


def nearer_starts(position: Blocks, potential: Potential, manifolds: Mapping[Block, Manifold]) -> Blocks:
    r"""Return nearer initial values for chains whose random initial values are far from the typical set.

    Draws from a posterior with d coordinates have energies about d/2 above the minimum, and Hamiltonian Monte Carlo
    descends from ten times that height in a few trajectories. From a start that is thousands of times as high it moves
    slowly, because the step size must suit the slope there. Therefore each chain descends separately by L-BFGS along
    the manifold:

    - a chain whose energy fell by less than $10 d + 500$ keeps its start; for posteriors such as mixtures this holds
      for all chains, whose modes are then explored as without the descent;
    - otherwise the chain starts at the first point of the descent whose energy is within d of the final one, a typical
      energy of draws; not at the mode itself, which can be narrow;
    - all chains keep their starts if any descent did not converge, or converged to an energy $10 d + 500$ above
      the lowest one: this indicates funnels with unbounded density, or local minima of negligible mass.

    Since chains descend separately, starts in different basins of attraction remain in different basins.

    Args:
        position: initial positions of all chains.
        potential: computes energies and gradients.
        manifolds: manifolds of the blocks that have one.
    """
    points = Points(position, potential, manifolds)
    size = max(1, next(iter(position.values())).element_size() * sum(x.numel() for x in position.values()))
    places, energies = _descent(points, position, min(_MOST_EVALUATIONS, _MOST_BYTES // size))
    coordinates = places.shape[-1]
    high, end = 10 * coordinates + 500, energies[-1]
    far = energies[0] - end > high
    at_rest = energies[-min(_BETWEEN_CHECKS, len(energies))] - end < _required_decrease(coordinates)
    if not bool(far.any() & (at_rest & (end - end.min() < high)).all()):
        return position
    first = (energies <= end + coordinates).to(torch.uint8).argmax(0)
    chosen = places[torch.where(far, first, 0), torch.arange(len(first), device=first.device)]
    return points.parts(chosen)


def _descent(points: Points[Block], position: Blocks, most: int) -> tuple[Tensor, Tensor]:
    """Run L-BFGS and return all positions ``(evaluations, chains, coordinates)`` with their energies."""
    descent = QuasiNewton(points)
    state = descent.begin(points.rows(position))
    places, energies = [state.at], [state.energy]
    while len(places) < most:
        state = descent.advance(state)
        places.append(state.at)
        energies.append(state.energy)
        if len(places) % _BETWEEN_CHECKS == 0 and not _still_decreases(energies, state.at.shape[1]):
            break
    return torch.stack(places), torch.stack(energies)


def _still_decreases(energies: list[Tensor], coordinates: int) -> bool:
    """Return whether the energy of any chain still decreases; at the first check, a large decrease is required."""
    enough = coordinates + 10 if len(energies) == _BETWEEN_CHECKS else _required_decrease(coordinates)
    return bool((energies[-_BETWEEN_CHECKS] - energies[-1] > enough).any())


def _required_decrease(coordinates: int) -> float:
    return max(0.5, coordinates / 10)
