"""Mechanics of unconstrained sites whose inverse mass matrix is a diagonal plus a matrix of low rank."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics.mechanics import EuclideanMechanics, Metric
from pyro_manifold.infer.mcmc.transitions import per_chain


class LowRankMetric(NamedTuple):
    r"""Masses of one block, the same for all chains, with an own mass along each of k directions.

    $$ M^{-1} = D^{1/2} \Big(I + \sum_i \lambda_i w_i w_i^\top\Big) D^{1/2} $$

    Attributes:
        scales: $D^{1/2}$, ``(1, d)``.
        weights: $\lambda_i > -1$, ``(1, k)``; 0 for a direction that is not used.
        directions: $w_i$, ``(1, k, d)``, orthonormal or zero.
    """

    scales: Tensor
    weights: Tensor
    directions: Tensor

    @classmethod
    def from_flat(cls, flat: Tensor) -> LowRankMetric:
        """Return the metric of ``(1, 1 + k, 1 + d)``: a row (in use, D), and a row (λ, w) for each direction.

        "In use" is 1 if code is to be compiled for directions, and else 0.
        """
        return cls(flat[:, 0, 1:].sqrt(), flat[:, 1:, 0].contiguous(), flat[:, 1:, 1:].contiguous())

    def stretched(self, vectors: Tensor, along: Tensor) -> Tensor:
        r"""Compute $v + \sum_i \alpha_i w_i w_i^\top v$ for vectors ``(chains, d)`` and α ``(1, k)``."""
        directions = self.directions[0]
        return vectors + (vectors @ directions.mT * along) @ directions


class LowRankMechanics(EuclideanMechanics):
    """Mechanics of Euclidean space with a `LowRankMetric`, or a diagonal `Metric` before directions are found.

    One step costs two products of a matrix of k rows with a vector more than with diagonal masses.
    """

    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric | LowRankMetric) -> Tensor:
        if isinstance(metric, Metric):
            return super().momentum_from(noise, position, metric)
        return metric.stretched(noise, (1 + metric.weights).rsqrt() - 1) / metric.scales

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric | LowRankMetric) -> Tensor:
        if isinstance(metric, Metric):
            return super().velocity(position, momentum, metric)
        return metric.stretched(momentum * metric.scales, metric.weights) * metric.scales

    def drift(
        self, position: Tensor, momentum: Tensor, metric: Metric | LowRankMetric, time: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        if isinstance(metric, Metric):
            return super().drift(position, momentum, metric, time)
        return position + per_chain(time, position) * self.velocity(position, momentum, metric), momentum
