"""The density of a run as it was at its beginning, against which a run that is resumed or continued is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyro_manifold.compiled import reason
from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc.running.reference_points import (
    AnotherDensityError,
    ReferencePoints,
    Values,
    difference,
    named,
)
from pyro_manifold.infer.mcmc.transitions import Blocks, Problem


class HasChains(Protocol):
    """Protocol of a `Run` for these checks."""

    problem: Problem
    state: Any


class RecordedDensity:
    """Log density and gradient of a run's model at reference points, and where its chains are.

    Args:
        run: the run.
        at_position: function of a state and a position; returns the state there, with the density evaluated.
    """

    def __init__(self, run: HasChains, at_position: Callable[[Any, Blocks], Any]) -> None:
        self._run, self._at_position = run, at_position
        self._points: ReferencePoints | None = None

    def record(self) -> ReferencePoints:
        """Evaluate the model at reference points, once per run."""
        if self._points is None:
            problem = self._run.problem
            self._points = ReferencePoints.near(problem.target, problem.initial_values)
        return self._points

    def restore(self, points: ReferencePoints) -> None:
        """Use the reference points of a checkpoint."""
        self._points = points

    def check(self) -> None:
        """Check sites, log density and gradient against those of the run so far, at reference points and at the chains.

        Raises:
            AnotherDensityError: if they differ by more than rounding.
        """
        try:
            target = self._run.problem.target.present()
        except Exception as error:  # a model can fail in any way
            raise AnotherDensityError(f"the model fails, {reason(error)}") from error
        self.check_points(self.record(), target)
        self.check_chains()

    def check_points(self, points: ReferencePoints, target: Target) -> None:
        """Check a target at reference points; raises `AnotherDensityError`."""
        found = points.difference(target, self._run.problem.initial_values)
        if found is not None:
            raise AnotherDensityError(found)

    def check_chains(self) -> None:
        """Check the density of the chains' states against the model there; raises `AnotherDensityError`."""
        run = self._run
        if not run.state.position:
            return
        sites = run.problem.layout.unpack(run.state.position)
        found = difference(self._values_at, sites, self._values_of(run.state), "where chain {} is")
        if found is not None:
            raise AnotherDensityError(found)

    def _values_at(self, sites: Sites) -> Values:
        run = self._run
        return self._values_of(self._at_position(run.state, run.problem.layout.pack(sites)))

    def _values_of(self, state: Any) -> Values:
        """Return log density, gradient and metric (if it depends on the model) of a state."""
        gradient = self._run.problem.layout.unpack(state.gradient)
        return named(-state.energy, gradient, getattr(state, "metric", None))
