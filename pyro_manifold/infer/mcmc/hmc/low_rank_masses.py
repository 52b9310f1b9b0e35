"""Inverse mass matrices of unconstrained sites that are a diagonal plus a matrix of low rank."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.ridge_masses import (
    FAR_FROM_ONE,
    RidgeEstimator,
    covariances,
    geometric_mean,
    worthwhile,
)
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks

_WEIGHT_OF_IDENTITY = 0.01  # in draws: more would make long directions look short

_LIKE_A_GAUSSIAN = 2.5
"""Largest product of the variances of draws and of gradients along an eigenvector: 1 for a Gaussian, with estimates up
to 2, and larger for all other distributions. In a funnel, whose neck requires other masses than its mouth, it is 5 to
100, and with directions chains would get stuck in the neck."""

_KURTOSIS = 8.0
"""Largest kurtosis of gradients along an eigenvector: 3 for a Gaussian, up to 7 for regressions and latent time series,
and 9 to 100 if the scale of a group of effects may vanish."""

_FEWER_STEPS = 3.0  # factor by which directions that were not requested must reduce the ratio of scales

_DRAWS_PER_COORDINATE = 2.0  # with fewer draws than coordinates, draws and gradients vary along other directions
_FEWEST_DRAWS = 100
"""Fewest draws of a window for directions that were not requested: the first windows of chains in the neck of a funnel
resemble those of a Gaussian."""


class LowRankEstimator(RidgeEstimator):
    r"""Directions of unconstrained blocks, the same for all chains, from draws and gradients within chains.

    With N the geometric mean of the covariance of draws and the inverse covariance of gradients, relative to the
    diagonal inverse masses D, as in `RidgeEstimator`,

    $$ M^{-1} = D^{1/2} \Big(\sigma I + \sum_{i=1}^k (\eta_i - \sigma) w_i w_i^\top\Big) D^{1/2}: $$

    with at most eight eigenvectors w and their eigenvalues η, chosen such that the remaining eigenvalues differ least,
    and σ the geometric mean of the remaining ones. Eigenvectors whose eigenvalue is within a factor of 2 of σ are left
    out. All are left out if the posterior is far from a Gaussian along any of them: if the product of the variances of
    draws and of gradients along it, which is 1 for a Gaussian, exceeds 2.5, or the kurtosis of gradients, which is 3
    for a Gaussian, exceeds 8.

    Source: Seyboldt, Carlson & Carpenter, arXiv 2603.18845, whose metric has neither σ nor this criterion.
    """

    @property
    def from_the_start(self) -> bool:
        """True if directions were requested, as two products of a matrix of k rows with a vector per step are cheap."""
        return not self.optional

    def __init__(self, group: tuple[Block, ...], position: Blocks, matrices: Collection[Block], optional: bool) -> None:
        super().__init__(group, position, matrices, optional)
        self._count = min(self._count, sum(self._numbers) - 1)

    def estimate(self, inverse_masses: Blocks) -> tuple[Tensor, Blocks]:
        fewest = max(_DRAWS_PER_COORDINATE * sum(self._numbers), _FEWEST_DRAWS if self.optional else 0)
        if len(self._states) * len(self.initial()) < fewest:
            return self.initial(), {}
        scales = self._scales(inverse_masses)
        coordinates, gradients = self._coordinates(scales, {})
        spread, curvature = (_within_chains(values) for values in (coordinates, gradients))
        values, vectors = torch.linalg.eigh(geometric_mean(spread, curvature))
        outside, usual = _far_from_others(values, self._count)
        # Since C = N G N, both variances along an eigenvector of N follow from one.
        products = (values * (vectors * (curvature @ vectors)).sum(0)).square()
        used = (values[outside] / usual).log().abs() > math.log(FAR_FROM_ONE)
        used &= (products.max() < _LIKE_A_GAUSSIAN) & (_kurtosis(gradients, vectors).max() < _KURTOSIS)
        left = values.scatter(0, outside, torch.where(used, usual, values[outside]))
        if not bool(used.any()) or (self.optional and not worthwhile(values, left, _FEWER_STEPS)):
            return self.initial(), {}
        shifts = (vectors[:, outside] * scales.mT).mT * used.unsqueeze(-1)
        weights = torch.where(used, values[outside] - usual, 0.0)
        flat = torch.cat([weights.unsqueeze(-1), shifts], -1).expand(self.initial().shape).contiguous()
        return flat, {block: usual * inverse_masses[block] for block in self._vectors}

    def _for_other_chains(self, flat: Tensor, like: Tensor) -> Tensor:
        return flat[:1].expand_as(like).contiguous()


def _within_chains(values: Tensor) -> Tensor:
    """Return the covariance of ``(chains, iterations, size)`` within chains."""
    return covariances((values - values.mean(1, keepdim=True)).flatten(0, 1), _WEIGHT_OF_IDENTITY)


def _kurtosis(values: Tensor, vectors: Tensor) -> Tensor:
    """Return the kurtosis within chains of ``(chains, iterations, size)`` along each column of vectors."""
    centred = (values - values.mean(1, keepdim=True)).flatten(0, 1) @ vectors
    return centred.pow(4).mean(0) / centred.square().mean(0).square()


def _far_from_others(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return indices of ``count`` of the smallest and largest sorted values, and the geometric mean of the others.

    The split between smallest and largest minimises the ratio of the largest to the smallest remaining value.
    """
    logs, left = values.log(), len(values) - count
    first = int((logs[left - 1 :] - logs[: count + 1]).argmin())
    places = torch.arange(len(values), device=values.device)
    return torch.cat([places[:first], places[first + left :]]), logs[first : first + left].mean().exp()
