r"""Importance weights of particles: choice of the next temperature, resampling, and evidence increments.

A particle from the distribution at $\beta$ has at $\beta + \delta$ the weight $e^{-\delta L}$, L
minus its log likelihood. Arrays are ``(runs, particles)``; runs are independent.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_HALVINGS = 60


def log_mean_weight(log_weights: Tensor) -> Tensor:
    """Compute the log of the mean weight of each run, ``(runs,)``: the increment of the log evidence."""
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def shares_of_error(log_weights: Tensor, chains: int) -> Tensor:
    r"""Compute the contribution of each chain to the error of `log_mean_weight`, ``(runs, chains)``.

    It is the relative deviation of the mean weight of chain m of M, $(\bar w_m / \bar w - 1) / M$. Its sum over m
    is 0, and its sum of squares estimates the variance of the logarithm, by the delta method.

    Args:
        log_weights: ``(runs, chains · states)``, with the states of a chain in succession.
        chains: M, the number of chains.
    """
    weights = log_weights.softmax(-1) * log_weights.shape[-1]  # of mean 1
    return (weights.unflatten(-1, (chains, -1)).mean(-1) - 1) / chains


def effective_share(log_weights: Tensor) -> Tensor:
    r"""Compute the effective sample size divided by N, $(\sum w)^2 / (N \sum w^2)$, ``(runs,)``."""
    return (2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1)).exp() / log_weights.shape[-1]


def next_inverse_temperature(negative_log_likelihood: Tensor, inverse_temperature: Tensor, share: float) -> Tensor:
    """Compute the largest β, up to 1, at which the effective sample size is at least this share of the particles.

    Args:
        negative_log_likelihood: L, minus the log likelihood of each particle, ``(runs, particles)``.
        inverse_temperature: current β of each run, ``(runs,)``.
        share: effective sample size divided by the number of particles, between 0 and 1.
    """
    low, high = inverse_temperature, torch.ones_like(inverse_temperature)

    def enough(new: Tensor) -> Tensor:
        return effective_share(-(new - inverse_temperature).unsqueeze(-1) * negative_log_likelihood) >= share

    low = torch.where(enough(high), high, low)
    for _ in range(_HALVINGS):  # bisection: the effective sample size decreases with β
        middle = (low + high) / 2
        good = enough(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    # A remainder of the size of rounding errors would otherwise be a level of its own.
    return torch.where(high - low > 0, torch.maximum(low, torch.nextafter(inverse_temperature, high)), low)


def systematic_resampling(log_weights: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Draw indices of ``count`` particles of each run, ``(runs, count)``, by systematic resampling.

    It uses one uniform number per run; a particle of normalised weight w is drawn ⌊count·w⌋ or ⌊count·w⌋ + 1 times.

    Args:
        log_weights: log weights, ``(runs, particles)``.
        count: number of particles to draw.
        random: random number generator.
    """
    runs = len(log_weights)
    upper = log_weights.softmax(-1).cumsum(-1)
    upper = upper / upper[:, -1:]
    options: Any = {"dtype": upper.dtype, "device": upper.device}
    start = torch.rand(runs, 1, generator=random, **options)
    points = (torch.arange(count, **options) + start) / count
    return torch.searchsorted(upper, points).clamp(max=log_weights.shape[-1] - 1)
