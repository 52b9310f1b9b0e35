r"""Temperature of momenta, averaged over the steps of an iteration, and the coordinate with the highest one.

Temperatures are computed for each part. A part is a coordinate of an unconstrained site, with the mean of
$r_i^2 / m_i$ as temperature, or a manifold site, with twice its kinetic energy per degree of freedom. Parts are
numbered across all blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics, Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Layout, Observer


class KineticTemperature:
    """Accumulator of momentum temperatures: sums over steps for each part, in units of `_unit`.

    Args:
        mechanics: mechanics of each block.
        metrics: masses of all blocks, which are diagonal.
    """

    def __init__(self, mechanics: ProductMechanics, metrics: Metrics) -> None:
        self._mechanics, self._metrics = mechanics, metrics
        self._sums: Blocks = {}
        self._degrees: dict[Block, int] = {}
        self._steps = 0

    def add(self, position: Blocks, momentum: Blocks) -> None:
        """Add a step; blocks are ``(chains, ...)``."""
        self._steps += 1
        for block, move in self._mechanics.items():
            if block not in self._sums:
                self._begin(block, position[block], self._of(block, position[block], momentum[block]))
            elif isinstance(move, EuclideanMechanics):
                self._sums[block].addcmul_(momentum[block], momentum[block])  # a single pass over memory
            else:
                self._sums[block].add_(self._of(block, position[block], momentum[block]))

    def add_paths(self, position: Blocks, momentum: Blocks) -> None:
        """Add all steps of several iterations; sums are then ``(iterations, chains, parts)``.

        Args:
            position: ``(iterations, steps, chains, ...)``.
            momentum: momenta of the same shapes.
        """
        for block in self._mechanics:
            x, r = position[block], momentum[block]
            self._steps = r.shape[1]
            each = self._of(block, x.flatten(0, 2), r.flatten(0, 2))
            self._begin(block, x[0, 0], each.reshape(*r.shape[:3], -1).sum(1))

    def mean(self, like: Tensor) -> Tensor:
        """Return the temperature of all parts together, ``(chains,)`` as ``like``; zeros if there are no parts."""
        total = torch.zeros_like(like)
        for block, sums in self._sums.items():
            share = self._degrees[block] / (max(1, sums.shape[-1]) * max(1, sum(self._degrees.values())))
            total = total + share * (sums * self._unit(block)).sum(-1)
        return total / max(1, self._steps)

    def of_part(self, number: int, like: Tensor) -> Tensor:
        """Return the temperature of one part, ``(chains,)`` as ``like``; zeros if there is no such part."""
        for block, sums in self._sums.items():
            if number < sums.shape[-1]:
                unit = self._unit(block).expand(1, sums.shape[-1])
                return sums[..., number] * unit[:, number] / self._steps
            number -= sums.shape[-1]
        return torch.zeros_like(like)

    def added_to(self, total: Blocks) -> Blocks:
        """Add this iteration's means over chains to a sum over iterations, ``{block: (1, parts)}``.

        For several iterations the result is the cumulative sums ``(iterations, 1, parts)``.
        """
        return {block: _accumulated(_mean_over_chains(sums), total.get(block)) for block, sums in self._sums.items()}

    def hottest(self, total: Blocks) -> int:
        """Return the number of the part with the highest temperature in such sums; 0 if there are no parts."""
        if not any(sums.numel() for sums in total.values()):
            return 0
        return int(torch.cat([(sums * self._unit(block)).flatten() for block, sums in total.items()]).argmax())

    def _begin(self, block: Block, position: Tensor, sums: Tensor) -> None:
        self._sums[block] = sums
        self._degrees[block] = self._mechanics[block].degrees_of_freedom(position)

    def _of(self, block: Block, position: Tensor, momentum: Tensor) -> Tensor:
        """Return the sums of each part, ``(rows, parts)``."""
        move = self._mechanics[block]
        if isinstance(move, EuclideanMechanics):
            return momentum.square()
        energy = move.kinetic_energy(position, momentum, self._metrics[block])
        return (2 / max(1, move.degrees_of_freedom(position)) * energy).unsqueeze(1)

    def _unit(self, block: Block) -> Tensor:
        """Return the factors of sums, ``(1, 1)`` or ``(1, parts)``."""
        inverse_mass = self._metrics[block].inverse_mass.reshape(1, -1)
        euclidean = isinstance(self._mechanics[block], EuclideanMechanics)
        return inverse_mass if euclidean else torch.ones_like(inverse_mass[:, :1])


def _mean_over_chains(sums: Tensor) -> Tensor:
    """Compute means over chains, ``(1, parts)``, by a matrix product, which takes half the time of `torch.mean`."""
    chains = sums.shape[-2]
    return sums if chains == 1 else sums.new_full((1, chains), 1 / chains) @ sums


def _accumulated(means: Tensor, total: Tensor | None) -> Tensor:
    """Compute cumulative sums in the order of iterations, so that rounding does not depend on their batching."""
    if means.dim() == 2:
        return means if total is None else total + means
    found: list[Tensor] = []
    for mean in means:
        total = mean if total is None else total + mean
        found.append(total)
    return torch.stack(found)


def no_heat(mechanics: ProductMechanics, position: Blocks) -> Blocks:
    """Return sums over zero iterations, in the format of `KineticTemperature.added_to`."""
    euclidean = {block: isinstance(move, EuclideanMechanics) for block, move in mechanics.items()}
    return {block: x.new_zeros(1, x.shape[1] if euclidean[block] else 1) for block, x in position.items()}


class TemperatureOfSites(Observer):
    """Name of the site with the highest momentum temperature, for the warning about it.

    Args:
        mechanics: mechanics of each block.
        layout: sites of each block.
    """

    def __init__(self, mechanics: ProductMechanics, layout: Layout) -> None:
        self._mechanics, self._layout = mechanics, layout

    def max_temperature_site(self, state: Any) -> str | None:
        return site_of(state.hottest, self._mechanics, self._layout)


def site_of(number: int, mechanics: ProductMechanics, layout: Layout) -> str | None:
    """Return the site that a part belongs to; None if there is none."""
    for block in mechanics:
        sizes = {name: layout.shapes[name].numel() if name in layout.shapes else 1 for name in block}
        for name, size in sizes.items():
            if number < size:
                return name
            number -= size
    return None
