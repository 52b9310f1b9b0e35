"""State of chains during sampling, with checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from pyro_manifold.compiled import reason
from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc.running.code_checks import CodeChecks
from pyro_manifold.infer.mcmc.running.comparison_schedule import next_comparison
from pyro_manifold.infer.mcmc.running.recorded_density import RecordedDensity
from pyro_manifold.infer.mcmc.running.reference_points import ReferencePoints
from pyro_manifold.infer.mcmc.transitions import (
    BatchedIterations,
    Composition,
    Lookahead,
    Problem,
    S,
    Statistics,
    Together,
    in_rows,
    of_tensors,
    unbound,
)
from pyro_manifold.store import Saved, Serialisable, check_entries, plain, restored

T = TypeVar("T")

_GRAPHS_OF_DENSITY = {"native", "traced"}
"""Forms of a density that agree but for rounding, and are made from the model when a run begins."""


class Run(Saved, Generic[S, T]):
    """Run of all chains: states, adaptation, counters and random number generator, as returned by `Kernel.prepare`.

    Random numbers come from the run's own generator. Draws therefore do not depend on other code in the process, and
    `state_dict` contains everything that they depend on.

    Args:
        problem: target, initial values and potential.
        parts: transitions and adaptation, as composed by the kernel.
        warmup_steps: number of warm-up iterations.
        configuration: the kernel's settings as strings, which are compared when a saved run is loaded.

    Attributes:
        transitions: transitions of an iteration, in this order.
        iteration: number of iterations so far, including warm-up.
        statistics: statistics of the last iteration, ``{name: (chains,)}``.
        divergences: divergent iterations after warm-up, of all chains, ``()``.
        mean_acceptance: mean acceptance probability of this stage so far, ``()``.
        policy: when to compile native code; ``compilation`` are its counts.
        code: graphs and compiled code, with their comparisons.
        density: the density as it was at the beginning, with checks of a run that is continued.
        configuration: the kernel's settings as strings, with the numbers of chains and of warm-up iterations.
    """

    is_of_kernel: ClassVar[bool] = True
    """Whether `Kernel.run_of` can make the run again from its target."""

    changing: ClassVar[tuple[str, ...]] = (
        "iteration",
        "state",
        "tuning",
        "divergences",
        "mean_acceptance",
        "compilation",
    )

    def __init__(
        self,
        problem: Problem,
        parts: Composition[S, T],
        warmup_steps: int,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        self.problem = problem
        self.configuration = {**(configuration or {}), "chains": str(problem.chains), "warmup_steps": str(warmup_steps)}
        self.chains = problem.chains
        self.warmup_steps = warmup_steps
        self.state = in_rows(parts.state)
        self.tuning = parts.tuning
        self.transitions = parts.transitions
        alone = parts.transitions[0] if len(parts.transitions) == 1 else None
        self._batched_iterations = alone if isinstance(alone, BatchedIterations) else None
        self._at_position = parts.at_position
        self._observers = parts.observers
        self.policy = parts.code.policy
        self.code = CodeChecks(self, parts.code)
        self.density = RecordedDensity(self, parts.at_position)
        self.random = problem.random
        self._lookahead: Lookahead[S] = Lookahead()
        self.iteration = 0
        self.statistics: Statistics = {}
        self.divergences = torch.zeros((), dtype=torch.long, device=parts.state.energy.device)
        self.mean_acceptance = torch.zeros_like(parts.state.energy[0])
        self.policy.before(self.state)

    @property
    def compilation(self) -> dict[str, int]:
        return self.policy.counts

    @compilation.setter
    def compilation(self, counts: dict[str, int]) -> None:
        self.policy.counts = counts

    @property
    def warming_up(self) -> bool:
        """True if the last iteration was part of warm-up."""
        return self.iteration <= self.warmup_steps

    @property
    def positions(self) -> Sites:
        """Positions of the chains in the coordinates in which they move, ``{site: (chains, ...)}``."""
        return self.problem.layout.unpack(self.state.position)

    @property
    def sites(self) -> Sites:
        """Sites of the model, ``{site: (chains, ...)}``, on manifolds, or unconstrained for other sites."""
        return self.target.sites(self.positions)

    @property
    def max_temperature_site(self) -> str | None:
        """Site with the highest momentum temperature; None where temperatures are not measured."""
        found = [observer.max_temperature_site(self.state) for observer in self._observers]
        return next((site for site in found if site is not None), None)

    def warn(self) -> None:
        """Issue the end-of-run warnings of this kind of run."""

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return additional entries of `MCMC.diagnostics` for this kind of run."""
        return {name: x for each in self._observers for name, x in each.diagnostics_entries().items()}

    def summary_lines(self) -> list[str]:
        """Return lines below the table of `MCMC.summary`."""
        return [line for each in self._observers for line in each.summary_lines()]

    def progress(self) -> dict[str, str]:
        """Return additional figures for the progress bar."""
        return {}

    @property
    def target(self) -> Target:
        """Target distribution of the draws."""
        return self.problem.target

    @property
    def backends(self) -> dict[str, str]:
        """Backend of the density, steps and iterations, such as ``"eager"``, ``"traced"`` or ``"native"``."""
        return {name: graph.backend for name, graph in self.code.graphs.items()}

    @property
    def values(self) -> Sites:
        """Constrained values of the chains, ``{site: (chains, ...)}``."""
        return self.target.values(self.positions)

    def advance(self) -> Sites:
        """Run one iteration of every chain and return `sites`."""
        self.iterate()
        return self.sites

    def iterate(self) -> None:
        """Run one iteration of every chain."""
        if not self._lookahead and (made := self._made_together()) is not None:
            self._lookahead.add(made)
        if self._lookahead:
            self.state, self.statistics = self._lookahead.next()
            self.iteration += 1
            self._count(self.statistics)
        else:
            self._make_one()
        self.code.after_iteration()
        self.policy.after(self.iteration, self.statistics, self.state, self.warming_up)

    def _make_one(self) -> None:
        iteration = self.iteration + 1
        settings = self.tuning.settings(iteration)
        before = state = self.state
        statistics: Statistics = {}
        for transition in self.transitions:
            before = state
            state, found = transition(before, settings, self.random)
            statistics.update(found)
        # Only now, so that an interrupt leaves the run unchanged.
        self.state, self.statistics, self.iteration = in_rows(state), statistics, iteration
        if iteration == 1:
            _check_statistics(statistics, self.problem.chains)
        if self.warming_up:
            self.tuning.learn(iteration, before, self.state, statistics, self.random)
        else:
            together = of_tensors(lambda x: x.unsqueeze(0), self.state)
            self.statistics.update(unbound(self.statistics_of(together), 1)[0])
        self._count(self.statistics)

    def iterate_together(self) -> Together[S] | None:
        """Run the iterations that native code makes in one call; None if there are no such iterations next.

        Their code is to be compared afterwards, by ``code.after_iteration``, once they are stored.
        """
        made = None if self._lookahead else self._made_together(rewindable=False)
        if made is None:
            return None
        iterations = len(made.states.energy)
        self.state, self.iteration = in_rows(made.at(iterations - 1)), self.iteration + iterations
        self.statistics = {name: x[-1] for name, x in made.statistics.items()}
        self._count(made.statistics, iterations)
        return made

    def _made_together(self, rewindable: bool = True) -> Together[S] | None:
        """Return batched iterations, made in one call of native code, after warm-up and up to the next comparison."""
        together, done = self._batched_iterations, self.iteration
        if together is None or done < max(1, self.warmup_steps) or done >= self.policy.planned:
            return None
        first = self.tuning.settings(done + 1)
        last = min(done + together.iterations_per_call(first), next_comparison(done), self.policy.planned)
        if last == done + 1:
            return None
        settings = [first, *map(self.tuning.settings, range(done + 2, last + 1))]
        made = together.iterate(self.state, settings, self.random, rewindable=rewindable)
        if made is None:
            return None
        return made._replace(statistics={**made.statistics, **self.statistics_of(made.states)})

    def statistics_of(self, states: S) -> Statistics:
        """Return statistics of states ``(states, chains, ...)`` after warm-up that transitions do not compute."""
        return _orthogonality_error(self.problem, states)

    def move_to(self, positions: Sites) -> None:
        """Move the chains to new positions."""
        self._lookahead.forget(self.random)
        self.state = self._at_position(self.state, self.problem.layout.pack(positions))

    def _count(self, statistics: Statistics, iterations: int = 1) -> None:
        """Count the iterations whose statistics these are, ``(chains,)`` or ``(iterations, chains)``."""
        if "acceptance_rate" in statistics:
            done = self.iteration if self.warming_up else self.iteration - self.warmup_steps
            previous = torch.zeros_like(self.mean_acceptance) if done == iterations else self.mean_acceptance
            change = statistics["acceptance_rate"].mean() - previous
            self.mean_acceptance = previous + change / (done / iterations)
        if not self.warming_up and "diverging" in statistics:
            self.divergences = self.divergences + statistics["diverging"].sum()

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the state on which later draws depend, as nested dictionaries of tensors, numbers and strings.

        A run of the same kernel, model, data, number of chains and warm-up that loads it continues bit for bit as this
        run would, also in another process, given the same machine and number of threads.
        """
        self._lookahead.forget(self.random)
        saved = {**super().state_dict(), "random": self.random.get_state(), "forms": self.backends}
        return {**saved, "made with": dict(self.configuration), "reference": plain(self.density.record())}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore a checkpoint of a run.

        Raises:
            ValueError: for a run of another kernel or settings, or another number of chains or warm-up iterations, and
                if log density or gradient differ at its chains or reference points; the message names the difference.
        """
        check_entries(saved, (*self.changing, "random", "forms", "made with", "reference"), "the run")
        _check_configuration(saved["made with"], self.configuration)
        check_entries(saved["forms"], self.code.graphs, "the run's graphs")
        for name, form in saved["forms"].items():
            if not isinstance(form, str):
                raise ValueError(f"The saved form of the {name} is {form!r}, expected a string such as 'traced'.")
        present = self.state_dict()
        try:
            points = ReferencePoints.restored(saved["reference"], self.random.device)
            self.density.check_points(points, self.problem.target)
            super().load_state_dict(saved)
            self.random.set_state(restored(present["random"], saved["random"], "random"))
            if self.iteration < 0:
                raise ValueError(f"The saved 'iteration' is {self.iteration}, expected at least 0.")
            self.density.check_chains()
        except Exception as error:  # a damaged state can fail in any way
            super().load_state_dict(present)  # a state is never partly loaded
            self.random.set_state(present["random"])
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"The saved run is damaged ({reason(error)}): restore another checkpoint.") from error
        self.density.restore(points)
        self.statistics = {}
        if self.policy.made:
            self.policy.make(self.state)
        for name, graph in self.code.graphs.items():
            form = saved["forms"][name]
            if form == graph.backend:
                continue
            if {form, graph.backend} != _GRAPHS_OF_DENSITY:
                graph.use_reference()
            if form != graph.backend:
                warnings.warn(
                    f"The saved run had its {name} {form}, which is not possible here: it continues {graph.backend}, "
                    "and its draws may differ by rounding from those of an uninterrupted run.",
                    stacklevel=2,
                )


def _check_statistics(statistics: Statistics, chains: int) -> None:
    for name, value in statistics.items():
        if not isinstance(value, Tensor) or value.shape != (chains,):
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(
                f"A transition returns '{name}' as {found}, expected a tensor with one value for each chain, "
                f"({chains},)."
            )


def _orthogonality_error(problem: Problem, states: Any) -> Statistics:
    """Compute the largest distance of each chain from its manifolds, ``(states, chains)``, if there are any."""
    errors = []
    for block, manifold in problem.manifolds.items():
        if block[0] in problem.target.undifferentiated:
            continue
        position = states.position[block]
        errors.append(manifold.membership_error(position).reshape(*position.shape[:2], -1).amax(-1))
    return {"orthogonality_error": torch.stack(errors).amax(0)} if errors else {}


def _check_configuration(saved: Serialisable, configuration: Mapping[str, str]) -> None:
    check_entries(saved, configuration, "the run's settings")
    for name, here in configuration.items():
        if saved[name] != here:
            raise ValueError(
                f"The saved run has {name}={saved[name]}, this one {name}={here}: prepare a run with the same settings."
            )
