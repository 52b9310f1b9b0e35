"""Compilation policy: criterion for compiling native code, which is slow to compile and fast to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

_FIRST_ITERATION = 32
_FIRST_ITERATION_PLANNED = 2
_OPERATORS_OF_AN_ITERATION = 150
_OPERATORS_WORTH_MAKING = 200_000
"""Number of tensor operators that take one or two seconds, about the time to compile native code of a short graph."""
_PER_OPERATOR_OF_THE_GRAPH = 100
"""Number of tensor operators that take as long as compiling one of a long graph."""


class CompilationPolicy:
    """Compilation policy: compile once the estimated remaining cost of a run exceeds the cost of compiling.

    If the number of iterations is known, the remaining cost is extrapolated from the past cost per iteration. Otherwise
    it is estimated by the past cost, with which a run takes at most about twice the time of the better choice. Cost is
    measured in tensor operators, not in seconds, so that runs with the same seed are identical.

    Args:
        make: compiles, given the state of the run; None if there is nothing to compile.
        operators: number of tensor operators of one step.
        size: number of operators in the graph to compile.
        at_once: whether to compile before the first iteration, without counting.
        fits: returns whether compiled code, if in use, fits the settings, whose structure can change in warm-up.

    Attributes:
        work: number of operators so far.
        planned: total number of iterations; 0 if not known.
        made: 1 if compilation has been done, else 0.
        counts: the three by name, which can be set.
    """

    def __init__(
        self,
        make: Callable[[Any], None] | None,
        operators: int = 0,
        *,
        size: int = 0,
        at_once: bool = False,
        fits: Callable[[], bool] = lambda: True,
    ) -> None:
        self._make, self._operators, self._at_once, self._fits = make, operators, at_once, fits
        self._worth_making = _OPERATORS_WORTH_MAKING + size * _PER_OPERATOR_OF_THE_GRAPH
        self.work = self.planned = self.made = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"work": self.work, "planned": self.planned, "made": self.made}

    @counts.setter
    def counts(self, counts: Mapping[str, int]) -> None:
        self.work, self.planned, self.made = (counts[name] for name in ("work", "planned", "made"))

    def before(self, state: Any) -> None:
        """Compile before the first iteration, if requested."""
        if self._make is not None and self._at_once:
            self._make(state)

    def after(self, iteration: int, statistics: Mapping[str, Tensor], state: Any, warming_up: bool = False) -> None:
        """Count a completed iteration, and compile if worthwhile; recompile if warm-up has changed the settings."""
        if warming_up and self.made and not self._fits():
            self.made = 0
        if self._make is None or self._at_once or self.made:
            return
        steps = int(statistics["n_steps"][0]) if "n_steps" in statistics and len(statistics["n_steps"]) else 1
        self.work += _OPERATORS_OF_AN_ITERATION + steps * self._operators
        ahead = self.work / iteration * (self.planned - iteration) if self.planned else self.work
        earliest = _FIRST_ITERATION_PLANNED if self.planned else _FIRST_ITERATION
        if iteration >= earliest and ahead > self._worth_making:
            self.make(state)

    def make(self, state: Any) -> None:
        """Compile now."""
        self.made = 1
        if self._make is not None:
            self._make(state)
