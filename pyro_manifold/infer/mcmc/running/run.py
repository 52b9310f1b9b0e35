"""State of chains during sampling, with checkpoints and comparisons of graphs with the model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from pyro_manifold.compiled import reason
from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc.running import comparison_schedule as schedule
from pyro_manifold.infer.mcmc.running.reference_points import (
    AnotherDensityError,
    ReferencePoints,
    Values,
    difference,
    named,
)
from pyro_manifold.infer.mcmc.transitions import (
    BatchedIterations,
    Composition,
    Lookahead,
    Problem,
    S,
    Statistics,
    in_rows,
    unbound,
)
from pyro_manifold.store import Saved, Serialisable, check_entries, plain, restored

T = TypeVar("T")


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
        compilation: policy for when to compile native code.
        configuration: the kernel's settings as strings, with the numbers of chains and of warm-up iterations.
    """

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
        self._together = alone if isinstance(alone, BatchedIterations) else None
        self._at_position = parts.at_position
        self._difference = parts.difference or self._difference_of_density
        self._hottest, self._report, self._sentences = parts.hottest, parts.report, parts.sentences
        self.compilation = parts.compilation
        self._code, self._slow = parts.code, parts.slow
        self._graphs = {"density": problem.batched.graph, **parts.graphs}
        self.random = problem.random
        self._lookahead: Lookahead[S] = Lookahead()
        self._reference: ReferencePoints | None = None
        self.iteration = 0
        self.statistics: Statistics = {}
        self.divergences = torch.zeros((), dtype=torch.long, device=parts.state.energy.device)
        self.mean_acceptance = torch.zeros_like(parts.state.energy[0])
        self.compilation.before(self.state)

    @property
    def warming_up(self) -> bool:
        """True if the last iteration was part of warm-up."""
        return self.iteration <= self.warmup_steps

    @property
    def sites(self) -> Sites:
        """Positions of the chains, ``{site: (chains, ...)}``, on manifolds, or unconstrained for other sites."""
        return self.problem.layout.unpack(self.state.position)

    @property
    def max_temperature_site(self) -> str | None:
        """Site with the highest momentum temperature; None where temperatures are not measured."""
        return self._hottest(self.state)

    def warn(self) -> None:
        """Issue the end-of-run warnings of this kind of run."""

    def report(self) -> dict[str, Any]:
        """Return additional entries of `MCMC.diagnostics` for this kind of run."""
        return self._report()

    def sentences(self) -> list[str]:
        """Return lines below the table of `MCMC.summary`."""
        return self._sentences()

    def figures(self) -> dict[str, str]:
        """Return additional figures for the progress bar."""
        return {}

    @property
    def target(self) -> Target:
        """Target distribution of the draws."""
        return self.problem.target

    @property
    def backends(self) -> dict[str, str]:
        """Form in use of the density, steps and iterations, such as ``"eager"``, ``"traced"`` or ``"native"``."""
        return {name: graph.backend for name, graph in self._graphs.items()}

    @property
    def values(self) -> Sites:
        """Constrained values of the chains, ``{site: (chains, ...)}``."""
        return self.problem.target.values(self.sites)

    def advance(self) -> Sites:
        """Run one iteration of every chain and return `sites`."""
        if not self._lookahead:
            self._make_several()
        if self._lookahead:
            self.state, self.statistics = self._lookahead.next()
            self.iteration += 1
            self._count()
        else:
            self._make_one()
        if schedule.code_is_compared(self.iteration):
            self.compare_graphs(schedule.CHAINS_COMPARED_WITH_CODE)
            self.compare_code()
        elif schedule.graph_is_compared(self.iteration, self.stage):
            self.compare_graphs(schedule.CHAINS_COMPARED)
        self.compilation.after(self.iteration, self.statistics, self.state, self.warming_up)
        return self.sites

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
            self._check_statistics()
        if self.warming_up:
            self.tuning.learn(iteration, before, self.state, statistics, self.random)
        else:
            self.statistics.update(unbound(self._orthogonality_error([self.state]), 1)[0])
        self._count()

    def _make_several(self) -> None:
        """Run batched iterations in one call of native code, after warm-up and up to the next comparison."""
        together, done = self._together, self.iteration
        if together is None or done < max(1, self.warmup_steps) or done >= self.compilation.planned:
            return
        first = self.tuning.settings(done + 1)
        compared = schedule.next_comparison_of_graph(done)
        last = min(done + together.iterations_per_call(first), compared, self.compilation.planned)
        if last > done + 1:
            settings = [first, *map(self.tuning.settings, range(done + 2, last + 1))]
            states, statistics, random = together.iterate(self.state, settings, self.random)
            if states:
                self._lookahead.add(states, {**statistics, **self._orthogonality_error(states)}, random)

    def _check_statistics(self) -> None:
        for name, value in self.statistics.items():
            if not isinstance(value, Tensor) or value.shape != (self.problem.chains,):
                found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise ValueError(
                    f"A transition returns '{name}' as {found}, expected a tensor with one value for each chain, "
                    f"({self.problem.chains},)."
                )

    def move_to(self, positions: Sites) -> None:
        """Move the chains to new positions."""
        self._lookahead.forget(self.random)
        self.state = self._at_position(self.state, self.problem.layout.pack(positions))

    def _count(self) -> None:
        if "acceptance_rate" in self.statistics:
            done = self.iteration if self.warming_up else self.iteration - self.warmup_steps
            previous = torch.zeros_like(self.mean_acceptance) if done == 1 else self.mean_acceptance
            self.mean_acceptance = previous + (self.statistics["acceptance_rate"].mean() - previous) / done
        if not self.warming_up and "diverging" in self.statistics:
            self.divergences = self.divergences + self.statistics["diverging"].sum()

    def _orthogonality_error(self, states: Sequence[S]) -> Statistics:
        """Compute the largest distance of each chain from its manifolds, ``(states, chains)``, if there are any."""
        errors = []
        for block, manifold in self.problem.manifolds.items():
            position = torch.stack([state.position[block] for state in states])
            errors.append(manifold.membership_error(position).reshape(*position.shape[:2], -1).amax(-1))
        return {"orthogonality_error": torch.stack(errors).amax(0)} if errors else {}

    @property
    def stage(self) -> schedule.Stage:
        """Stage of the last iteration, ``"warm-up"`` or ``"sampling"``."""
        return "warm-up" if self.warming_up else "sampling"

    def compare_graphs(self, count: int) -> None:
        """Compare the graph of the density with the model at some of the chains; drop all graphs if they differ.

        Tracing freezes branches on values, which may have no effect near the initial values. `advance` makes this
        comparison at intervals for two or four chains, each time for other ones.

        Args:
            count: number of chains to compare, evenly spaced.
        """
        chains = schedule.chains_to_compare(self.iteration, self.problem.chains, count)
        difference = self._difference(self.state, chains)
        if difference is None:
            return
        self._lookahead.forget(self.random)
        for graph in self._graphs.values():
            graph.use_reference()
        self.state = self._at_position(self.state, self.state.position)
        where = self.stage if self.warming_up else f"{self.stage}, draws so far may be wrong"
        warnings.warn(
            f"The traced density differs from the model at iteration {self.iteration} (in {where}): {difference}. "
            "Continuing with a loop over chains, without tracing.",
            stacklevel=3,
        )

    def record_density(self) -> ReferencePoints:
        """Evaluate the model at reference points, once per run, so that it can be identified when a run is resumed."""
        if self._reference is None:
            self._reference = ReferencePoints.near(self.problem.target, self.problem.initial_values)
        return self._reference

    def check_density(self) -> None:
        """Check sites, log density and gradient against those of the run so far, at reference points and at the chains.

        Raises:
            AnotherDensityError: if they differ by more than rounding.
        """
        try:
            target = self.problem.target.present()
        except Exception as error:  # a model can fail in any way
            raise AnotherDensityError(f"the model fails, {reason(error)}") from error
        self._check_reference(self.record_density(), target)
        self._check_where_chains_are()

    def _check_reference(self, reference: ReferencePoints, target: Target) -> None:
        found = reference.difference(target, self.problem.initial_values)
        if found is not None:
            raise AnotherDensityError(found)

    def _check_where_chains_are(self) -> None:
        if not self.state.position:
            return
        sites = self.problem.layout.unpack(self.state.position)
        found = difference(self._values_at, sites, self._values_of(self.state), "where chain {} is")
        if found is not None:
            raise AnotherDensityError(found)

    def _values_at(self, sites: Sites) -> Values:
        return self._values_of(self._at_position(self.state, self.problem.layout.pack(sites)))

    def _values_of(self, state: S) -> Values:
        """Return log density, gradient and metric (if it depends on the model) of a state."""
        return named(-state.energy, self.problem.layout.unpack(state.gradient), getattr(state, "metric", None))

    def compare_code(self, *, slow: bool = False) -> None:
        """Compare compiled code of steps or iterations with the original at all chains; drop code that differs.

        One iteration is run in both ways with separate random numbers, and all its proposals that are not divergent are
        accepted, so that rejected proposals are compared too.

        Args:
            slow: whether to include comparisons that take long.
        """
        for name, difference_from in self._code.items():
            graph = self._graphs[name]
            if not graph.is_graph or (name in self._slow and not slow):
                continue
            random = torch.Generator(self.state.energy.device).manual_seed(self.iteration)
            difference = difference_from(self.state, self.tuning.settings(max(1, self.iteration)), random)
            if difference is not None:
                # If the density's graph is wrong, so is all code that contains it.
                self.compare_graphs(schedule.CHAINS_COMPARED_AT_THE_END)
                if graph.is_graph:
                    self._go_on_without(name, difference)

    def _go_on_without(self, name: str, difference: str) -> None:
        graph, agreed = self._graphs[name], schedule.previous_comparison_of_code(self.iteration)
        form = graph.backend
        self._lookahead.forget(self.random)
        graph.use_reference()
        self.state = self._at_position(self.state, self.state.position)
        since = f"iteration {agreed}, when it last agreed," if agreed else "it was built"
        draws = max(0, min(self.iteration - self.warmup_steps, self.iteration - agreed))
        made = f" ({draws} of sampling)" if draws else ""
        without = {"native": "PYRO_MANIFOLD_NATIVE=0 in the environment", "compiled": "jit_compile=False"}
        again = f": run again with {without[form]}" if form in without else ""
        warnings.warn(
            f"The {form} code of the {name} is wrong at iteration {self.iteration} (in {self.stage}): {difference}. "
            f"Continuing without it, which is slower. The {self.iteration - agreed} iterations{made} since {since} "
            f"may be wrong, and so may earlier ones that visited similar states{again}.",
            stacklevel=3,
        )

    def compare_at_the_end(self) -> None:
        """Compare graphs and code at the end of a run, at more chains than before."""
        self.compare_graphs(schedule.CHAINS_COMPARED_AT_THE_END)
        self.compare_code(slow=True)

    def _difference_of_density(self, state: S, chains: list[int]) -> str | None:
        return self.problem.batched.difference_at(self.problem.layout.unpack(state.position), chains)

    # ---- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the state on which later draws depend, as nested dictionaries of tensors, numbers and strings.

        A run of the same kernel, model, data, number of chains and warm-up that loads it continues bit for bit as this
        run would, also in another process, given the same machine and number of threads.
        """
        self._lookahead.forget(self.random)
        saved = {**super().state_dict(), "random": self.random.get_state(), "forms": self.backends}
        return {**saved, "made with": dict(self.configuration), "reference": plain(self.record_density())}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore a checkpoint of a run.

        Raises:
            ValueError: for a run of another kernel or settings, or another number of chains or warm-up iterations, and
                if log density or gradient differ at its chains or reference points; the message names the difference.
        """
        check_entries(saved, (*self.changing, "random", "forms", "made with", "reference"), "the run")
        self._check_configuration(saved["made with"])
        check_entries(saved["forms"], self._graphs, "the run's graphs")
        for name, form in saved["forms"].items():
            if not isinstance(form, str):
                raise ValueError(f"The saved form of the {name} is {form!r}, expected a string such as 'traced'.")
        present = self.state_dict()
        try:
            reference = ReferencePoints.restored(saved["reference"], self.random.device)
            self._check_reference(reference, self.problem.target)
            super().load_state_dict(saved)
            self.random.set_state(restored(present["random"], saved["random"], "random"))
            if self.iteration < 0:
                raise ValueError(f"The saved 'iteration' is {self.iteration}, expected at least 0.")
            self._check_where_chains_are()
        except Exception as error:  # a damaged state can fail in any way
            super().load_state_dict(present)  # a state is never partly loaded
            self.random.set_state(present["random"])
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"The saved run is damaged ({reason(error)}): restore another checkpoint.") from error
        self._reference, self.statistics = reference, {}
        if self.compilation.made:
            self.compilation.make(self.state)
        for name, graph in self._graphs.items():
            form = saved["forms"][name]
            if form == graph.backend:
                continue
            graph.use_reference()
            if form != graph.backend:
                warnings.warn(
                    f"The saved run had its {name} {form}, which is not possible here: it continues {graph.backend}, "
                    "and its draws may differ by rounding from those of an uninterrupted run.",
                    stacklevel=2,
                )

    def _check_configuration(self, saved: Serialisable) -> None:
        check_entries(saved, self.configuration, "the run's settings")
        for name, here in self.configuration.items():
            if saved[name] != here:
                raise ValueError(
                    f"The saved run has {name}={saved[name]}, this one {name}={here}: prepare a run with the same "
                    "settings."
                )
