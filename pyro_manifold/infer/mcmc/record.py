"""What happened at each iteration after warm-up, kept on tensors until someone asks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.states import Statistics


class Record:
    """Statistics of every chain and draw, by whatever names the transitions chose.

    Where several iterations make one draw (thinning), ``diverging`` says whether any of them diverged; every other
    statistic is that of the last.
    """

    def __init__(self) -> None:
        self._columns: list[Statistics] = []
        self._thinned = False
        self._diverging: Tensor | None = None  # whether any iteration of the draw that is under way did

    def add(self, statistics: Statistics, *, kept: bool = True) -> None:
        """Add one iteration; ``kept`` says whether its end is a draw."""
        if "diverging" in statistics:
            diverging = statistics["diverging"]
            self._diverging = diverging if self._diverging is None else self._diverging | diverging
        if not kept:
            self._thinned = True
            return
        if self._thinned:  # so that nothing keeps the rows of iterations that are no draws
            statistics = {name: value.clone() for name, value in statistics.items()}
        if self._diverging is not None:
            statistics = {**statistics, "diverging": self._diverging}
        self._columns.append(dict(statistics))
        self._diverging = None

    @property
    def draws(self) -> int:
        """How many draws there are statistics of."""
        return len(self._columns)

    def forget(self) -> None:
        """Begin anew, but for the draw that is under way."""
        self._columns = []

    def unfinished(self) -> Statistics:
        """What is known of the draw that is under way."""
        return {} if self._diverging is None else {"diverging": self._diverging}

    def begin(self, unfinished: Statistics) -> None:
        """Go on with a draw of which this is known."""
        self._diverging = unfinished.get("diverging")

    def statistics(self, names: Collection[str] | None = None) -> Statistics:
        """``{name: (chains, draws)}``, all or those of the names that there are."""
        if not self._columns:
            return {}
        chosen = [name for name in self._columns[0] if names is None or name in names]
        return {name: torch.stack([column[name] for column in self._columns], 1) for name in chosen}


def reports(statistics: Statistics, chains: int) -> list[dict[str, Any]]:
    """What a kernel's ``diagnostics`` says of each chain, from ``{name: (chains, draws)}``.

    ``"divergences"`` lists the draws that diverged, ``"acceptance rate"`` is the share accepted, ``"orthogonality
    error"`` the largest distance from a manifold, ``"sample stats"`` has all statistics.
    """
    return [_report({name: value[chain].clone() for name, value in statistics.items()}) for chain in range(chains)]


def _report(statistics: dict[str, Tensor]) -> dict[str, Any]:
    report: dict[str, Any] = {"divergences": []}
    if "diverging" in statistics:
        report["divergences"] = statistics["diverging"].nonzero().flatten().tolist()
    if "accepted" in statistics:
        report["acceptance rate"] = float(statistics["accepted"].double().mean())
    if "orthogonality_error" in statistics:
        report["orthogonality error"] = float(statistics["orthogonality_error"].max())
    return {**report, "sample stats": statistics}
