r"""Weights of particles: how far to go, who goes on, and what that says of the evidence.

A particle that follows the distribution at :math:`\beta` has at :math:`\beta + \delta` the weight
:math:`e^{-\delta L}`, L minus its log likelihood. Arrays are ``(runs, particles)``: runs know nothing of each other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_HALVINGS = 60


def log_mean_weight(log_weights: Tensor) -> Tensor:
    """Logarithm of the mean weight of each run, ``(runs,)``: the evidence that a step adds."""
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def shares_of_error(log_weights: Tensor, chains: int) -> Tensor:
    r"""What each chain has in the error of `log_mean_weight`, ``(runs, chains)``.

    The mean weight of chain m of M relative to that of all: :math:`(\bar w_m / \bar w - 1) / M`, whose
    sum over m is 0, and whose sum of squares is about the variance of the logarithm, by the delta method.

    Args:
        log_weights: ``(runs, chains · states)``, the states of one chain one after the other.
        chains: M.
    """
    weights = log_weights.softmax(-1) * log_weights.shape[-1]  # of mean 1
    return (weights.unflatten(-1, (chains, -1)).mean(-1) - 1) / chains


def effective_share(log_weights: Tensor) -> Tensor:
    r"""Effective sample size as a share of the particles, :math:`(\sum w)^2 / (N \sum w^2)`, ``(runs,)``."""
    return (2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1)).exp() / log_weights.shape[-1]


def next_inverse_temperature(misfit: Tensor, inverse_temperature: Tensor, share: float) -> Tensor:
    """The furthest β, up to 1, at which the effective sample size is still this share of the particles.

    Args:
        misfit: L, minus the log likelihood of each particle, ``(runs, particles)``.
        inverse_temperature: the present β of each run, ``(runs,)``.
        share: between 0 and 1.
    """
    low, high = inverse_temperature, torch.ones_like(inverse_temperature)

    def enough(new: Tensor) -> Tensor:
        return effective_share(-(new - inverse_temperature).unsqueeze(-1) * misfit) >= share

    low = torch.where(enough(high), high, low)
    for _ in range(_HALVINGS):  # the effective size falls as β grows
        middle = (low + high) / 2
        good = enough(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    # What rounding leaves of the way would be a step of its own.
    return torch.where(high - low > 0, torch.maximum(low, torch.nextafter(inverse_temperature, high)), low)


def systematic_resampling(log_weights: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Indices of ``count`` particles of each run, ``(runs, count)``, each drawn as often as its weight says.

    One uniform number for each run: a particle of weight share w comes ⌊count·w⌋ or one more times.

    Args:
        log_weights: ``(runs, particles)``.
        count: how many to draw.
        random: where the numbers come from.
    """
    runs = len(log_weights)
    upper = log_weights.softmax(-1).cumsum(-1)
    upper = upper / upper[:, -1:]
    options: Any = {"dtype": upper.dtype, "device": upper.device}
    start = torch.rand(runs, 1, generator=random, **options)
    points = (torch.arange(count, **options) + start) / count
    return torch.searchsorted(upper, points).clamp(max=log_weights.shape[-1] - 1)
