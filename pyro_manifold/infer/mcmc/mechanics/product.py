"""Mechanics of all blocks of sites together, on the product of their spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics.mechanics import EuclideanMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Problem, normal_like, refuse_manifold
from pyro_manifold.manifolds import Constant, Manifold

Metrics = Mapping[Block, Any]
"""Masses of each block: a `Metric`, or a `LowRankMetric`."""


def at_temperature(metrics: Metrics, temperature: float) -> Metrics:
    """Return the same masses with momenta drawn at a temperature; see `Metric.at`."""
    return {block: metric.at(temperature) for block, metric in metrics.items()}


class ProductMechanics(dict[Block, Mechanics]):
    """Mechanics of all blocks together, with the interface of `Mechanics`.

    Positions, momenta, gradients, masses and noise are dictionaries with the same keys. Kinetic energies are summed;
    all other operations act on each block separately, since flows on a product are products of flows.
    """

    def noise(self, position: Blocks, random: torch.Generator | None = None) -> Blocks:
        """Draw the standard normal noise from which momenta are computed."""
        return {block: normal_like(position[block], random) for block in self}

    def momentum_from(self, noise: Blocks, position: Blocks, metrics: Metrics) -> Blocks:
        """Compute momenta of all blocks from noise; see `Mechanics.momentum_from`."""
        return {k: move.momentum_from(noise[k], position[k], metrics[k]) for k, move in self.items()}

    def refresh(
        self, position: Blocks, momentum: Blocks, metrics: Metrics, persistence: float, noise: Blocks
    ) -> Blocks:
        """Refresh the momenta of all blocks; see `Mechanics.refresh`."""
        return {
            k: move.refresh(position[k], momentum[k], metrics[k], persistence, noise[k]) for k, move in self.items()
        }

    def slowed(self, momentum: Blocks, keep: float, position: Blocks, metrics: Metrics, noise: Blocks) -> Blocks:
        """Multiply momenta by ``keep`` and add fresh momenta computed from ``noise``."""
        fresh = self.momentum_from(noise, position, metrics)
        return {k: fresh[k].add_(r, alpha=keep) for k, r in momentum.items()}

    def kinetic_energy(self, position: Blocks, momentum: Blocks, metrics: Metrics) -> Tensor:
        """Compute K summed over blocks, ``(chains,)``."""
        return torch.stack([move.kinetic_energy(position[k], momentum[k], metrics[k]) for k, move in self.items()]).sum(
            0
        )

    def kick(self, position: Blocks, momentum: Blocks, gradient: Blocks, time: Tensor | float) -> Blocks:
        """Return the momenta after the force of the potential has acted for a time."""
        return {k: move.kick(position[k], momentum[k], gradient[k], time) for k, move in self.items()}

    def drift(
        self, position: Blocks, momentum: Blocks, metrics: Metrics, time: Tensor | float
    ) -> tuple[Blocks, Blocks]:
        """Return positions and momenta after free motion for a time."""
        moved = {k: move.drift(position[k], momentum[k], metrics[k], time) for k, move in self.items()}
        return {k: x for k, (x, _) in moved.items()}, {k: r for k, (_, r) in moved.items()}

    def restore(self, position: Blocks) -> Blocks:
        """Remove accumulated rounding errors from positions; see `Mechanics.restore`."""
        return {k: move.restore(position[k]) for k, move in self.items()}

    def restore_momentum(self, position: Blocks, momentum: Blocks) -> Blocks:
        """Project momenta to the tangent spaces at restored positions; see `Mechanics.restore_momentum`."""
        return {k: move.restore_momentum(position[k], momentum[k]) for k, move in self.items()}


def block_mechanics(problem: Problem, table: Mapping[type[Manifold], Mechanics]) -> ProductMechanics:
    """Return the mechanics of each block.

    Raises:
        ValueError: if the table has no mechanics for the manifold of a site.
    """
    mechanics = ProductMechanics({group: EuclideanMechanics() for group in problem.layout.groups})
    for block, manifold in problem.manifolds.items():
        found = [move for kind, move in {**table, **_ANYWHERE}.items() if isinstance(manifold, kind)]
        if not found:
            refuse_manifold(block[0], manifold, [kind.__name__ for kind in table])
        mechanics[block] = found[0]
    return mechanics


_ANYWHERE: dict[type[Manifold], Mechanics] = {Constant: GeodesicMechanics(Constant())}
