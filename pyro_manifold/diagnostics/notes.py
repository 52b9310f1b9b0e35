"""Results of a sampler besides draws and statistics, and those of several runs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Notes:
    """Results of a sampler besides draws and statistics.

    Attributes:
        entries: further entries of `MCMC.diagnostics`, such as those of replica exchange.
        lines: further lines below the table of `MCMC.summary`.
        num_superchains: number of groups of chains with a common initial value, for nested R-hat.
        chain_length: number of successive draws of `SMC` that are states of one chain; None for independent draws.
        relative_variance: of the evidence of all runs.
        from_prior: whether runs began at the prior, so that their log density can be compared with that of chains.
        levels: statistics of the levels of `SMC`, ``{name: (runs, levels)}``.
        attributes: attributes of the group ``sample_stats`` in ArviZ.
    """

    entries: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    num_superchains: int | None = None
    chain_length: int | None = None
    relative_variance: float = 0.0
    from_prior: bool = False
    levels: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


NO_NOTES = Notes()


def joined_notes(notes: Sequence[Notes]) -> Notes:
    """Return the notes on the precision of particles; the relative variance is that of a mean over parts."""
    variance = sum(each.relative_variance for each in notes) / len(notes) ** 2
    lengths = [each.chain_length for each in notes if each.chain_length is not None]
    from_prior = all(each.from_prior for each in notes)
    return Notes(chain_length=max(lengths, default=None), relative_variance=variance, from_prior=from_prior)
