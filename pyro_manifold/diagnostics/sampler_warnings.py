"""Warnings about the draws of a run, as classes, so that they can be distinguished, filtered, or made errors."""

from __future__ import annotations

from collections.abc import Sequence


class SamplerWarning(UserWarning):
    """Warning about the draws of a run.

    Args:
        message: what is wrong, and what to do.
        chains: the chains that it is about, by number; empty for all of them.
        site: the site that it is about.
        remedy: the argument of the kernel or the sampler to change first.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", SamplerWarning)
        ...     warnings.warn(StuckChains("Chain 2 hardly moved.", chains=[2], remedy="warmup_steps"))
        >>> caught[0].category.__name__, caught[0].message.chains
        ('StuckChains', (2,))
    """

    def __init__(self, message: str, *, chains: Sequence[int] = (), site: str | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.chains, self.site, self.remedy = tuple(chains), site, remedy


class StuckChains(SamplerWarning):
    """Warning of chains that moved in fewer than 5 % of iterations."""


class HotMomenta(SamplerWarning):
    """Warning of momenta whose temperature is too high, so that the variance of draws is too large."""


class MissedMass(SamplerWarning):
    """Warning of modes that descents find, and of which there are too few draws."""


class RunsDiffer(SamplerWarning):
    """Warning of log evidences that differ between runs."""
