"""When to make what is slow to make and fast from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.states import Statistics

_FIRST_ITERATION = 32
_FIRST_ITERATION_PLANNED = 2
_OPERATORS_OF_AN_ITERATION = 150
_OPERATORS_WORTH_MAKING = 200_000
"""As many tensor operators take one or two seconds, as long as native code takes to be made."""


class Haste(Saved):
    """Makes something once what lies ahead of a run costs more than making it.

    What lies ahead is as much for each iteration as before, where their number is known; else as much again as there
    has been, by which a run never takes more than about twice the time of the better choice. Cost is counted in tensor
    operators, not in seconds: a run with the same seed must be the same run.

    Args:
        make: what to do, given the state of the run; None for nothing.
        operators: of one step.

    Attributes:
        work: operators so far.
        planned: iterations in all; 0 if nobody knows.
        made: whether it has been done, 0 or 1.
    """

    changing = ("work", "planned", "made")

    def __init__(self, make: Callable[[Any], None] | None, operators: int = 0) -> None:
        self._make, self._operators = make, operators
        self.work = self.planned = self.made = 0

    def after(self, iteration: int, statistics: Statistics, state: Any) -> None:
        """Count an iteration that has been made, and make haste if that pays."""
        if self._make is None or self.made:
            return
        steps = int(statistics["n_steps"][0]) if "n_steps" in statistics and len(statistics["n_steps"]) else 1
        self.work += _OPERATORS_OF_AN_ITERATION + steps * self._operators
        ahead = self.work / iteration * (self.planned - iteration) if self.planned else self.work
        earliest = _FIRST_ITERATION_PLANNED if self.planned else _FIRST_ITERATION
        if iteration >= earliest and ahead > _OPERATORS_WORTH_MAKING:
            self.make(state)

    def make(self, state: Any) -> None:
        """Make haste now."""
        self.made = 1
        if self._make is not None:
            self._make(state)
