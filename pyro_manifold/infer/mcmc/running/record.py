"""Record of the statistics of each iteration after warm-up, kept as tensors until requested."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions import Statistics


class Record:
    """Statistics of every chain and draw, with the names that the transitions give them.

    With thinning, ``diverging`` is True if any of the iterations of a draw diverged; all other statistics are those of
    the last iteration.
    """

    def __init__(self) -> None:
        self._parts: list[Statistics] = []  # of one draw or more each, ``(draws, chains)``
        self._draws = 0
        self._thinned = False
        self._diverging: Tensor | None = None  # whether any iteration of the unfinished draw diverged

    def add(self, statistics: Statistics, *, kept: bool = True) -> None:
        """Add one iteration; ``kept`` is True if its end is a draw."""
        if "diverging" in statistics:
            diverging = statistics["diverging"]
            self._diverging = diverging if self._diverging is None else self._diverging | diverging
        if not kept:
            self._thinned = True
            return
        if self._thinned:  # so that the memory of thinned iterations is freed
            statistics = {name: value.clone() for name, value in statistics.items()}
        if self._diverging is not None:
            statistics = {**statistics, "diverging": self._diverging}
        self._parts.append({name: value.unsqueeze(0) for name, value in statistics.items()})
        self._draws += 1
        self._diverging = None

    def add_all(self, statistics: Statistics) -> None:
        """Add iterations each of which completes a draw, ``(iterations, chains)``."""
        self._parts.append(dict(statistics))
        self._draws += len(next(iter(statistics.values()), ()))

    @property
    def draws(self) -> int:
        """Number of draws with statistics."""
        return self._draws

    def forget(self) -> None:
        """Discard all statistics except those of the unfinished draw."""
        self._parts, self._draws = [], 0

    def unfinished(self) -> Statistics:
        """Return the statistics of the unfinished draw."""
        return {} if self._diverging is None else {"diverging": self._diverging}

    def begin(self, unfinished: Statistics) -> None:
        """Continue an unfinished draw with these statistics."""
        self._diverging = unfinished.get("diverging")

    def statistics(self, names: Collection[str] | None = None) -> Statistics:
        """Return ``{name: (chains, draws)}``, for all statistics or for those of the given names that exist."""
        if not self._parts:
            return {}
        chosen = [name for name in self._parts[0] if names is None or name in names]
        return {name: torch.cat([part[name] for part in self._parts]).T.contiguous() for name in chosen}
