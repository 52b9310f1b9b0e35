"""Comparisons of a run's graphs with the model, and of its compiled code with what the code replaces, while it runs.

Tracing freezes branches on values, which may have no effect near the initial values, and code may be wrong at states
that come later. What differs is replaced by the model itself, with a warning about the draws so far.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.running import comparison_schedule as schedule
from pyro_manifold.infer.mcmc.transitions import CompiledCode, Problem, Tuning

_WITHOUT = {"native": "PYRO_MANIFOLD_NATIVE=0 in the environment", "compiled": "jit_compile=False"}


class Checked(Protocol):
    """Protocol of a `Run` for its comparisons."""

    problem: Problem
    state: Any
    tuning: Tuning[Any, Any]
    iteration: int
    warmup_steps: int

    def move_to(self, positions: dict[str, Tensor]) -> None:
        """Evaluate the density at new positions."""


class CodeChecks:
    """Comparisons of the graphs and the code of one run.

    Args:
        run: the run.
        code: its code in addition to the graph of its potential.

    Attributes:
        graphs: graphs and code by name, ``"density"`` the first.
    """

    def __init__(self, run: Checked, code: CompiledCode) -> None:
        self._run, self._parts = run, code.parts
        self._difference = code.density_difference or self._difference_of_density
        self._operators = run.problem.size
        self.graphs = {"density": run.problem.batched.graph, **{name: part.graph for name, part in code.parts.items()}}

    @property
    def _stage(self) -> schedule.Stage:
        return "warm-up" if self._run.iteration <= self._run.warmup_steps else "sampling"

    def after_iteration(self) -> None:
        """Compare after those iterations that the schedule names, each time at other chains."""
        iteration = self._run.iteration
        if schedule.code_is_compared(iteration):
            self.compare_density(schedule.fewer(schedule.CHAINS_COMPARED_WITH_CODE, self._operators))
            self.compare_code()
        elif schedule.graph_is_compared(iteration, self._stage, self._operators):
            self.compare_density(schedule.fewer(schedule.chains_compared(iteration, self._stage), self._operators))

    def at_the_end(self) -> None:
        """Compare at the end of a run, at more chains than before."""
        self.compare_density(schedule.CHAINS_COMPARED_AT_THE_END)
        self.compare_code(slow=True)

    def compare_density(self, count: int) -> None:
        """Compare the graph of the density with the model at some of the chains; drop all graphs if they differ.

        Args:
            count: number of chains to compare, evenly spaced.
        """
        run = self._run
        difference = self._difference(run.state, schedule.chains_to_compare(run.iteration, run.problem.chains, count))
        if difference is None:
            return
        backend = self.graphs["density"].backend
        again = f": run again with {_WITHOUT[backend]}" if backend in _WITHOUT else ""
        self._replace(*self.graphs)
        where = self._stage if self._stage == "warm-up" else f"{self._stage}, draws so far may be wrong"
        warnings.warn(
            f"The {backend} density differs from the model at iteration {run.iteration} (in {where}): {difference}. "
            f"Continuing with a loop over chains, without tracing{again}.",
            stacklevel=4,
        )

    def compare_code(self, *, slow: bool = False) -> None:
        """Compare compiled code of steps or iterations with the original at all chains; drop code that differs.

        One iteration is run in both ways with separate random numbers, and all its proposals that are not divergent are
        accepted, so that rejected proposals are compared too.

        Args:
            slow: whether to include comparisons that take long.
        """
        run = self._run
        for name, part in self._parts.items():
            if part.difference is None or not part.graph.is_graph or (part.slow and not slow):
                continue
            random = torch.Generator(run.state.energy.device).manual_seed(run.iteration)
            difference = part.difference(run.state, run.tuning.settings(max(1, run.iteration)), random)
            if difference is not None:
                # If the density's graph is wrong, so is all code that contains it.
                self.compare_density(schedule.CHAINS_COMPARED_AT_THE_END)
                if part.graph.is_graph:
                    self._continue_without(name, difference)

    def _continue_without(self, name: str, difference: str) -> None:
        run, backend = self._run, self.graphs[name].backend
        agreed = schedule.previous_comparison_of_code(run.iteration)
        self._replace(name)
        since = f"iteration {agreed}, when it last agreed," if agreed else "it was built"
        draws = max(0, min(run.iteration - run.warmup_steps, run.iteration - agreed))
        of_sampling = f" ({draws} of sampling)" if draws else ""
        again = f": run again with {_WITHOUT[backend]}" if backend in _WITHOUT else ""
        warnings.warn(
            f"The {backend} code of the {name} is wrong at iteration {run.iteration} (in {self._stage}): {difference}. "
            f"Continuing without it, which is slower. The {run.iteration - agreed} iterations{of_sampling} since "
            f"{since} may be wrong, and so may earlier ones that visited similar states{again}.",
            stacklevel=4,
        )

    def _replace(self, *names: str) -> None:
        """Use the references of graphs from now on, with the density of the chains evaluated by them."""
        for name in names:
            self.graphs[name].use_reference()
        self._run.move_to(self._run.problem.layout.unpack(self._run.state.position))

    def _difference_of_density(self, state: Any, chains: list[int]) -> str | None:
        problem = self._run.problem
        return problem.batched.difference_at(problem.layout.unpack(state.position), chains)
