"""Rejection, all draws at once."""

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
        propose: of the indices ``(pending,)`` of draws still missing and a number of repeats; returns proposals
            ``(repeats, pending, ...)`` and the logarithms of their acceptance probabilities ``(repeats, pending)``.
        draws: ``(count, ...)``, written to.
        fruitless_rounds: after so many rounds in a row without any acceptance the search ends, which it need
            not where the rate of acceptance has a lower bound.

    Returns:
        ``draws``, and the indices of those that are still missing.
    """
    pending = torch.arange(len(draws), device=draws.device)
    fruitless = 0
    while len(pending) and fruitless < fruitless_rounds:
        # A few draws still missing are each proposed many times: rounds cost more than their size.
        proposal, log_ratio = propose(pending, max(1, _PROPOSALS_PER_ROUND // len(pending)))
        accepted = torch.rand_like(log_ratio).log() <= log_ratio
        found, first = accepted.any(0), accepted.int().argmax(0)
        draws[pending[found]] = proposal[first[found], found.nonzero().squeeze(-1)].to(draws.dtype)
        pending = pending[~found]
        fruitless = 0 if found.any() else fruitless + 1
    return draws, pending
