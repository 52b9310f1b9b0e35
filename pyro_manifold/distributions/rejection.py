"""Rejection sampling, vectorised over draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_PROPOSALS_PER_ROUND = 1024

Proposals = tuple[Tensor, Tensor]


def sample_by_rejection(
    propose: Callable[[Tensor, int], Proposals], draws: Tensor, fruitless_rounds: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Fill ``draws`` with accepted proposals.

    Args:
        propose: function of the indices ``(pending,)`` of draws still missing and a number of repeats; returns
            proposals ``(repeats, pending, ...)`` and the logarithms of their acceptance probabilities ``(repeats,
            pending)``.
        draws: ``(count, ...)``, written in place.
        fruitless_rounds: number of successive rounds without acceptance after which sampling stops; infinite if the
            acceptance rate has a lower bound.

    Returns:
        ``draws``, and the indices of those that are still missing.
    """
    pending = torch.arange(len(draws), device=draws.device)
    fruitless = 0
    while len(pending) and fruitless < fruitless_rounds:
        # The cost of a round hardly depends on its size: if few draws are missing, each has many proposals.
        proposal, log_ratio = propose(pending, max(1, _PROPOSALS_PER_ROUND // len(pending)))
        accepted = torch.rand_like(log_ratio).log() <= log_ratio
        found, first = accepted.any(0), accepted.int().argmax(0)
        draws[pending[found]] = proposal[first[found], found.nonzero().squeeze(-1)].to(draws.dtype)
        pending = pending[~found]
        fruitless = 0 if found.any() else fruitless + 1
    return draws, pending
