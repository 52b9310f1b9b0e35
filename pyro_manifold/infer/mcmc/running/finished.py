"""A run of which only the results are kept, in pickled copies of `MCMC`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Sampled(Protocol):
    """Protocol of what `MCMC` reads of a run, besides its draws and statistics.

    Attributes:
        draws: number of draws of each chain.
    """

    @property
    def draws(self) -> int: ...

    def report(self) -> dict[str, Any]:
        """Return the entries of `MCMC.diagnostics` that this kind of run adds to those of all runs."""

    def sentences(self) -> list[str]:
        """Return lines below the table of `MCMC.summary`."""


@dataclass(frozen=True)
class Finished:
    """A run that cannot go on.

    Attributes:
        draws: number of draws of each chain.
        entries: as `Sampled.report` returned them.
        lines: as `Sampled.sentences` returned them.
    """

    draws: int
    entries: dict[str, Any]
    lines: list[str]

    @classmethod
    def of(cls, run: Sampled) -> Finished:
        """Return what is kept of a run."""
        return cls(run.draws, run.report(), run.sentences())

    def report(self) -> dict[str, Any]:
        """Return the entries of `MCMC.diagnostics`."""
        return self.entries

    def sentences(self) -> list[str]:
        """Return the lines below the table of `MCMC.summary`."""
        return self.lines
