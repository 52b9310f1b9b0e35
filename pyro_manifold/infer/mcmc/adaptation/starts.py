"""Initial values of chains whose random ones are far from the typical set, or where there is hardly any probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.descent import Energies, LocalGaussian, Points, QuasiNewton
from pyro_manifold.infer.mcmc.adaptation.arrival import representatives
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Potential
from pyro_manifold.manifolds import Manifold

_MOST_EVALUATIONS = 200
_MOST_BYTES = 2**24  # size of the positions of all chains; the memory of a descent takes a hundred times as much
_BETWEEN_CHECKS = 12  # evaluations between convergence checks
_BETWEEN_PLACES = (3, 12)  # evaluations between points of a path that are compared, before and after the 48th
_FEWEST_PATHS = 4  # paths that are compared, so that a chain alone learns that it is lost
_MOST_ROUNDS = 4


def nearer_starts(
    position: Blocks,
    potential: Potential,
    manifolds: Mapping[Block, Manifold],
    redraw: Callable[[], Blocks],
    random: torch.Generator,
) -> Blocks:
    r"""Return nearer initial values for chains whose random initial values are far from the typical set.

    Draws from a posterior with d coordinates have energies about d/2 above the minimum, and Hamiltonian Monte Carlo
    descends from ten times that height in a few trajectories. From a start that is thousands of times as high it moves
    slowly, because the step size must suit the slope there. Therefore each chain descends separately by L-BFGS along
    the manifold. A point of the path stands for the probability that its `LocalGaussian` has a lower bound of: the
    lowest point can be a narrow mode, or on the way to a pole of the density, where there is ever less volume.

    - All keep their starts if the energy of none fell by more than $10 d + 500$, and else those whose energy fell by
      less than $10 d + 100$: where a density is steep, chains can be trapped on a way that is not as long.
    - Otherwise it starts at a draw from the first Gaussian whose bound is within $d / 2 + 10$ of the path's greatest.
    - A chain is lost if the greatest bound of its path is more than $d + 20$ below that of another path. It descends
      again from other random values; a chain that is lost in each of four descents begins where another one does.

    Chains thus stay in the basins of attraction of their starts, but for basins without probability. Nothing is
    compared if no energy fell so far and all end within $d + 20$ of the lowest, as those of most posteriors do.

    Source of the comparison: Zhang, Carpenter, Gelman & Vehtari, Pathfinder: parallel quasi-Newton variational
    inference, JMLR 2022.

    Args:
        position: initial positions of all chains.
        potential: computes energies and gradients.
        manifolds: manifolds of the blocks that have one.
        redraw: returns other random initial positions.
        random: random number generator.
    """
    if sum(x.element_size() * x.numel() for x in position.values()) > _MOST_BYTES:
        return position
    chains = len(next(iter(position.values())))
    points = Points(position, Energies(potential, chains), manifolds)
    paths = _descended(points, points.rows(position), random)
    if not _needs_comparison(paths.far, paths.end, points):
        return position
    greatest = paths.bound.max()
    for rounds in range(1, _MOST_ROUNDS):
        lost = greatest - paths.bound > _nearly(points)
        if not bool(lost.any()) and rounds * chains >= _FEWEST_PATHS:
            break
        others = _descended(points, points.rows(redraw()), random, compare=True)
        paths = paths.where(~lost | (others.bound <= paths.bound), others)
        greatest = torch.maximum(greatest, others.bound.max())
    lost = greatest - paths.bound > _nearly(points)
    return points.parts(paths.value[representatives(lost & ~lost.all())])


class _Paths(NamedTuple):
    """Descents of all chains, and what follows from them for each chain.

    Attributes:
        value: position at which the chain would begin, ``(chains, coordinates)``.
        far: whether that is not the start of the descent, ``(chains,)``.
        end: energy at the end.
        bound: greatest lower bound of the log probability around points of the path, up to a constant.
    """

    value: Tensor
    far: Tensor
    end: Tensor
    bound: Tensor

    def where(self, keep: Tensor, others: _Paths) -> _Paths:
        """Return these paths where ``keep`` is true and the others elsewhere."""
        pairs = zip(self, others, strict=True)
        return _Paths(*[torch.where(keep.unsqueeze(1) if own.dim() == 2 else keep, own, other) for own, other in pairs])


def _descended(points: Points[Block], start: Tensor, random: torch.Generator, compare: bool = False) -> _Paths:
    """Run L-BFGS from these points until no chain descends any more."""
    descent = QuasiNewton(points)
    state = descent.begin(start)
    energies, drawn, bounds = [state.energy], [start], [torch.full_like(state.energy, -torch.inf)]

    def compare_here() -> None:
        draws, bound = LocalGaussian.of_path(points, state).draws_and_bound(random)
        drawn.append(draws)
        bounds.append(bound)

    while len(energies) < _MOST_EVALUATIONS:
        state = descent.advance(state)
        energies.append(state.energy)
        if len(energies) % _BETWEEN_CHECKS == 0 and not _still_decreases(energies, points.dimension):
            break
        is_place = len(energies) % _BETWEEN_PLACES[len(energies) > 48] == 0
        if is_place and bool(_far(energies[0] - state.energy, points).any()):
            compare_here()
    far = _far(energies[0] - state.energy, points)
    if compare or _needs_comparison(far, state.energy, points):
        compare_here()
    bound = torch.stack(bounds)
    greatest = bound.max(0).values
    # Without a Gaussian, such as where the energy is linear, there is no better point than the start.
    far = far & greatest.isfinite()
    first = (bound >= greatest - points.dimension / 2 - 10).to(torch.uint8).argmax(0)
    chosen = torch.where(far, first, 0)
    return _Paths(torch.stack(drawn)[chosen, torch.arange(len(far), device=far.device)], far, state.energy, greatest)


def _far(fall: Tensor, points: Points[Block]) -> Tensor:
    """Return which chains are so far above the end of their descent that they do not begin at their starts."""
    height = 10 * points.dimension
    return (fall > height + 100) & (fall > height + 500).any()


def _nearly(points: Points[Block]) -> int:
    """Largest difference of log probabilities between modes of which both may count; bounds are off by about d / 2."""
    return points.dimension + 20


def _needs_comparison(far: Tensor, end: Tensor, points: Points[Block]) -> bool:
    return bool(far.any() | (end - end.min() > _nearly(points)).any())


def _still_decreases(energies: list[Tensor], coordinates: int) -> bool:
    """Return whether the energy of any chain still decreases; at the first check, a large decrease is required."""
    enough = coordinates + 10 if len(energies) == _BETWEEN_CHECKS else max(0.5, coordinates / 10)
    return bool((energies[-_BETWEEN_CHECKS] - energies[-1] > enough).any())
