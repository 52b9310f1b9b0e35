"""A short descent for chains whose random starts are far from where they belong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.states import Block, Blocks, Potential
from pyro_manifold.manifolds import Manifold

_MOST_EVALUATIONS = 200
_MOST_BYTES = 2**28  # of all places that a descent remembers
_BETWEEN_LOOKS = 12  # evaluations
_PAIRS = 10
_SUFFICIENT = 1e-4  # share of the decrease that the slope promises
_SHORTER = 1 / 3


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
    points = _Points(position, potential, manifolds)
    size = max(1, next(iter(position.values())).element_size() * sum(x.numel() for x in position.values()))
    places, energies = _descent(points, min(_MOST_EVALUATIONS, _MOST_BYTES // size))
    coordinates = places.shape[-1]
    high, end = 10 * coordinates + 500, energies[-1]
    far = energies[0] - end > high
    at_rest = energies[-min(_BETWEEN_LOOKS, len(energies))] - end < _worth_going_on(coordinates)
    if not bool(far.any() & (at_rest & (end - end.min() < high)).all()):
        return position
    first = (energies <= end + coordinates).to(torch.uint8).argmax(0)
    chosen = places[torch.where(far, first, 0), torch.arange(len(first), device=first.device)]
    return points.blocks(chosen)


class _Points:
    """Positions of all blocks as one vector for each chain, ``(chains, coordinates)``."""

    def __init__(self, position: Blocks, potential: Potential, manifolds: Mapping[Block, Manifold]) -> None:
        self._shapes = {block: x.shape for block, x in position.items()}
        self._potential, self._manifolds = potential, manifolds
        self.start = self._flat(position)

    def _flat(self, blocks: Blocks) -> Tensor:
        return torch.cat([blocks[block].flatten(1) for block in self._shapes], 1)

    def blocks(self, vectors: Tensor) -> Blocks:
        parts = vectors.split([shape[1:].numel() for shape in self._shapes.values()], 1)
        return {block: part.reshape(self._shapes[block]) for block, part in zip(self._shapes, parts, strict=True)}

    def tangent(self, at: Tensor, vectors: Tensor) -> Tensor:
        place, moved = self.blocks(at), self.blocks(vectors)
        for block, manifold in self._manifolds.items():
            moved[block] = manifold.tangent_projection(place[block], moved[block])
        return self._flat(moved)

    def moved(self, at: Tensor, by: Tensor) -> Tensor:
        place = self.blocks(at + by)
        for block, manifold in self._manifolds.items():
            place[block] = manifold.projection(place[block])
        return self._flat(place)

    def energy_and_slope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Where one is not finite, the energy is infinite."""
        energy, gradient = self._potential(self.blocks(at))
        slope = self.tangent(at, self._flat(gradient))
        fine = energy.isfinite() & slope.isfinite().all(1)
        return torch.where(fine, energy, torch.inf), torch.where(fine.unsqueeze(1), slope, 0.0)


def _descent(points: _Points, most: int) -> tuple[Tensor, Tensor]:
    """L-BFGS of each chain by itself: all places ``(evaluations, chains, coordinates)``, and their energies."""
    at = points.start
    energy, slope = points.energy_and_slope(at)
    step, direction = torch.ones_like(energy), -_unit(slope)
    places, energies = [at], [energy]
    pairs = [at.new_zeros(_PAIRS, len(at), size) for size in (at.shape[1], at.shape[1], 1)]
    while len(places) < most:
        there = points.moved(at, step.unsqueeze(1) * direction)
        energy_there, slope_there = points.energy_and_slope(there)
        promised = (slope * direction).sum(1)
        good = energy_there <= energy + _SUFFICIENT * step * promised
        moved, turned = points.tangent(there, there - at), slope_there - points.tangent(there, slope)
        curvature = (moved * turned).sum(1)
        learns = good & (curvature > 1e-10 * moved.norm(dim=1) * turned.norm(dim=1))
        newest = moved, turned, (1 / curvature).unsqueeze(1)
        # Each chain keeps its own last pairs: one that stepped back has learnt nothing and forgets nothing.
        pairs = [
            torch.where(learns[:, None], torch.cat([old[1:], new[None]]), old)
            for old, new in zip(pairs, newest, strict=True)
        ]
        at, slope = (torch.where(good.unsqueeze(1), *pair) for pair in ((there, at), (slope_there, slope)))
        energy = torch.where(good, energy_there, energy)
        following = points.tangent(at, _quasi_newton(slope, *pairs))
        downhill = (following * slope).sum(1, keepdim=True) < 0
        following = torch.where(downhill, following, -_unit(slope))
        direction = torch.where(good.unsqueeze(1), following, direction)
        step = torch.where(good, 1.0, step * _SHORTER)
        places.append(at)
        energies.append(energy)
        if len(places) % _BETWEEN_LOOKS == 0 and not _pays(energies, at.shape[1]):
            break
    return torch.stack(places), torch.stack(energies)


def _pays(energies: list[Tensor], coordinates: int) -> bool:
    """Whether a chain still falls; at the first look, whether one has fallen as if it came from far."""
    enough = coordinates + 10 if len(energies) == _BETWEEN_LOOKS else _worth_going_on(coordinates)
    return bool((energies[-_BETWEEN_LOOKS] - energies[-1] > enough).any())


def _worth_going_on(coordinates: int) -> float:
    return max(0.5, coordinates / 10)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)


def _quasi_newton(slope: Tensor, moved: Tensor, turned: Tensor, weight: Tensor) -> Tensor:
    """The two loops of L-BFGS (Nocedal & Wright, algorithm 7.4); of ``(pairs, chains, ...)`` the last is the newest."""
    direction, shares = slope, []
    for s, y, rho in zip(moved.flip(0), turned.flip(0), weight.flip(0), strict=True):
        shares.append(rho * (s * direction).sum(1, keepdim=True))
        direction = direction - shares[-1] * y
    scale = 1 / (weight[-1] * turned[-1].square().sum(1, keepdim=True))
    direction = torch.where(weight[-1] > 0, scale * direction, _unit(direction))
    for s, y, rho, share in zip(moved, turned, weight, reversed(shares), strict=True):
        direction = direction + (share - rho * (y * direction).sum(1, keepdim=True)) * s
    return -direction
