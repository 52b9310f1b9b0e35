"""All that changes while chains are sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pyro_manifold.graphs.agreement import agrees
from pyro_manifold.graphs.trusted import Trusted, reason
from pyro_manifold.infer.mcmc.ahead import Ahead, Together
from pyro_manifold.infer.mcmc.haste import Haste
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.saving import Plain, Saved, check_entries, restored
from pyro_manifold.infer.mcmc.states import Blocks, S, Statistics, Transition, in_rows
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Target

T = TypeVar("T")
S_contra = TypeVar("S_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_ITERATIONS_BETWEEN_COMPARISONS = {"warm-up": 8, "sampling": 256}
_GOLDEN_RATIO = (1 + 5**0.5) / 2


def golden_phase(iteration: int) -> float:
    """A number in [0, 1) for each iteration; any run of them fills the interval evenly."""
    return (iteration * _GOLDEN_RATIO) % 1


class Tuning(Protocol[S_contra, T_co]):
    """What chooses the settings of transitions, and learns during warm-up."""

    def settings(self, iteration: int) -> T_co:
        """Settings of one iteration, counted from 1."""

    def learn(
        self, iteration: int, before: S_contra, after: S_contra, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Take in one iteration of warm-up: the states around the last transition, and all statistics."""

    def state_dict(self) -> dict[str, Plain]:
        """Everything that it has learnt, as tensors, numbers and strings."""

    def load_state_dict(self, saved: dict[str, Plain]) -> None:
        """Take the place of the one that was saved."""


class Fixed(Saved, Generic[T]):
    """Settings that nothing changes."""

    def __init__(self, settings: T) -> None:
        self._settings = settings

    def settings(self, iteration: int) -> T:
        return self._settings

    def learn(self, *_: object) -> None:
        """Nothing to learn."""


@dataclass
class Parts(Generic[S, T]):
    """What a kernel composes a run of.

    Attributes:
        state: where the chains begin.
        transitions: one iteration, in this order; the last one is the one that is tuned.
        tuning: chooses the settings of all of them.
        renew: a state and a position to that state there, with all that depends on the density computed anew.
        graphs: forms of functions that contain the density, beside the potential itself.
        difference: a state and some chains to what the graph of the density has different from the model there; None
            for that of the problem's potential.
        haste: makes what is slow to make and fast from then on.
    """

    state: S
    transitions: Sequence[Transition[S, T]]
    tuning: Tuning[S, T]
    renew: Callable[[S, Blocks], S]
    graphs: dict[str, Trusted] = field(default_factory=dict)
    difference: Callable[[S, list[int]], str | None] | None = None
    haste: Haste = field(default_factory=lambda: Haste(None))


class Run(Saved, Generic[S, T]):
    """Chains under way: their states, tuning, counters and random numbers. A kernel's `prepare` makes one.

    Random numbers come from a generator of the run's own. So nothing else in the process changes the draws, and
    `state_dict` holds all that they depend on.

    Args:
        problem: target, initial values and potential.
        parts: what the kernel has composed.
        warmup_steps: iterations that adapt.
        configuration: the kernel's settings in words, to know them again when a saved run is loaded.

    Attributes:
        transitions: one iteration, in this order.
        iteration: iterations made so far, those of warm-up included.
        statistics: what the transitions told of the last iteration, ``{name: (chains,)}``.
        divergences: divergent iterations after warm-up, of all chains, ``()``.
        mean_acceptance: mean acceptance probability of this stage so far, ``()``.
        haste: knows when native code pays.
        made_with: the kernel's settings in words, and how many chains and iterations of warm-up.
    """

    changing: ClassVar[tuple[str, ...]] = ("iteration", "state", "tuning", "divergences", "mean_acceptance", "haste")

    def __init__(
        self, problem: Problem, parts: Parts[S, T], warmup_steps: int, configuration: Mapping[str, str] | None = None
    ) -> None:
        self.problem = problem
        self.made_with = {**(configuration or {}), "chains": str(problem.chains), "warmup_steps": str(warmup_steps)}
        self.chains = problem.chains
        self.warmup_steps = warmup_steps
        self.state = in_rows(parts.state)
        self.tuning = parts.tuning
        self.transitions = parts.transitions
        alone = parts.transitions[0] if len(parts.transitions) == 1 else None
        self._together = alone if isinstance(alone, Together) else None
        self._renew = parts.renew
        self._difference = parts.difference or self._difference_of_density
        self.haste = parts.haste
        self._graphs = {"density": problem.batched.graph, **parts.graphs}
        self.random = problem.random
        self._ahead: Ahead[S] = Ahead()
        self.iteration = 0
        self.statistics: Statistics = {}
        self.divergences = torch.zeros((), dtype=torch.long, device=parts.state.energy.device)
        self.mean_acceptance = torch.zeros_like(parts.state.energy[0])

    @property
    def warming_up(self) -> bool:
        """Whether the last iteration belonged to the warm-up."""
        return self.iteration <= self.warmup_steps

    @property
    def sites(self) -> Sites:
        """Where the chains are, ``{site: (chains, ...)}``: manifold sites on their manifold, others unconstrained."""
        return self.problem.layout.unpack(self.state.position)

    @property
    def target(self) -> Target:
        """What the draws are of."""
        return self.problem.target

    @property
    def values(self) -> Sites:
        """Where the chains are, ``{site: (chains, ...)}``, as the model has it."""
        return self.problem.target.values(self.sites)

    def advance(self) -> Sites:
        """One iteration of every chain; returns `sites`."""
        if not self._ahead:
            self._make_several()
        if self._ahead:
            self.state, self.statistics = self._ahead.next()
            self.iteration += 1
            self._count()
        else:
            self._make_one()
        if self.iteration % _ITERATIONS_BETWEEN_COMPARISONS[self.stage] == 1:
            self.compare_graphs(2)
        self.haste.after(self.iteration, self.statistics, self.state)
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
        # Only now, so that an interrupt leaves the run where it was.
        self.state, self.statistics, self.iteration = in_rows(state), statistics, iteration
        if iteration == 1:
            self._check_statistics()
        if self.warming_up:
            self.tuning.learn(iteration, before, self.state, statistics, self.random)
        else:
            self.statistics.update(self._orthogonality_error(self.state))
        self._count()

    def _make_several(self) -> None:
        """In one call of native code, where nothing is learnt between them; so many as nobody looks between."""
        together, done = self._together, self.iteration
        if together is None or done < max(1, self.warmup_steps) or done >= self.haste.planned:
            return
        first = self.tuning.settings(done + 1)
        every = _ITERATIONS_BETWEEN_COMPARISONS["sampling"]
        last = min(done + together.at_once(first), done + every - (done - 1) % every, self.haste.planned)
        if last > done + 1:
            settings = [first, *map(self.tuning.settings, range(done + 2, last + 1))]
            states, statistics, random = together.several(self.state, settings, self.random)
            self._ahead.add(states, {**statistics, **self._orthogonality_error(states)}, random)

    def _check_statistics(self) -> None:
        for name, value in self.statistics.items():
            if not isinstance(value, Tensor) or value.shape != (self.problem.chains,):
                found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise ValueError(
                    f"A transition tells '{name}' as {found}, expected a tensor of one number for each chain, "
                    f"({self.problem.chains},)."
                )

    def move_to(self, positions: Sites) -> None:
        """Put the chains elsewhere."""
        self._ahead.forget(self.random)
        self.state = self._renew(self.state, self.problem.layout.pack(positions))

    def _count(self) -> None:
        if "acceptance_rate" in self.statistics:
            done = self.iteration if self.warming_up else self.iteration - self.warmup_steps
            previous = torch.zeros_like(self.mean_acceptance) if done == 1 else self.mean_acceptance
            self.mean_acceptance = previous + (self.statistics["acceptance_rate"].mean() - previous) / done
        if not self.warming_up and "diverging" in self.statistics:
            self.divergences = self.divergences + self.statistics["diverging"].sum()

    def _orthogonality_error(self, state: S) -> Statistics:
        """The largest distance of each chain from a manifold, if there is one."""
        errors = [
            manifold.membership_error(state.position[block]).reshape(*state.energy.shape, -1).amax(-1)
            for block, manifold in self.problem.manifolds.items()
        ]
        return {"orthogonality_error": torch.stack(errors).amax(0)} if errors else {}

    @property
    def stage(self) -> str:
        """``"warm-up"`` or ``"sampling"``: to which the last iteration belonged."""
        return "warm-up" if self.warming_up else "sampling"

    def compare_graphs(self, count: int) -> None:
        """Compare the density with the model where some of the chains are; where they differ, go on without graphs.

        A branch on values may be frozen in a trace though both sides agreed near the initial values. `advance` does so
        now and then for two chains; other ones each time.

        Args:
            count: how many chains to look at, spread evenly.
        """
        every = self.problem.chains
        first = int(golden_phase(self.iteration) * every)
        stride = max(1, every // count)
        chains = sorted({(first + k * stride) % every for k in range(min(count, every))})
        difference = self._difference(self.state, chains)
        if difference is None:
            return
        self._ahead.forget(self.random)
        for graph in self._graphs.values():
            graph.forget()
        self.state = self._renew(self.state, self.state.position)
        where = self.stage if self.warming_up else f"{self.stage}, draws so far may be wrong"
        warnings.warn(
            f"The traced density left the model's at iteration {self.iteration} (in {where}): {difference} Going on "
            "with a loop over chains, without tracing.",
            stacklevel=3,
        )

    def _difference_of_density(self, state: S, chains: list[int]) -> str | None:
        return self.problem.batched.difference_at(self.problem.layout.unpack(state.position), chains)

    # ---- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Plain]:
        """Everything that later draws depend on, as tensors, numbers and strings in nested dictionaries.

        A run of the same kernel, model, data, number of chains and warm-up that loads it goes on bit for bit as this
        one would, in another process too, given the same machine and number of threads.
        """
        self._ahead.forget(self.random)
        forms = {name: graph.form for name, graph in self._graphs.items()}
        saved = {**super().state_dict(), "random": self.random.get_state(), "forms": forms}
        return {**saved, "made with": dict(self.made_with)}

    def load_state_dict(self, saved: dict[str, Plain]) -> None:
        """Take the place of the run that was saved.

        Raises:
            ValueError: if it was a run of another kernel or settings, another number of chains or of warm-up
                iterations, or if the model or its data give its state another density; the sentence says what differs.
        """
        check_entries(saved, (*self.changing, "random", "forms", "made with"), "the run")
        self._check_made_alike(saved["made with"])
        check_entries(saved["forms"], self._graphs, "the run's graphs")
        for name, form in saved["forms"].items():
            if not isinstance(form, str):
                raise ValueError(f"The saved form of the {name} is {form!r}, expected a word such as 'traced'.")
        present = self.state_dict()
        try:
            super().load_state_dict(saved)
            self.random.set_state(restored(present["random"], saved["random"], "random"))
            if self.iteration < 0:
                raise ValueError(f"The saved 'iteration' is {self.iteration}, expected at least 0.")
            self._check_density()
        except Exception as error:  # what is damaged can fail in any way
            super().load_state_dict(present)  # nothing is half loaded
            self.random.set_state(present["random"])
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"The saved run is damaged ({reason(error)}): restore another.") from error
        self.statistics = {}
        if self.haste.made:
            self.haste.make(self.state)
        for name, graph in self._graphs.items():
            form = saved["forms"][name]
            if form == graph.form:
                continue
            graph.forget()
            if form != graph.form:
                warnings.warn(
                    f"The saved run had its {name} {form}, which cannot be done here: it goes on {graph.form}, and its "
                    "draws may differ from an uninterrupted run's by rounding.",
                    stacklevel=2,
                )

    def _check_made_alike(self, saved: Plain) -> None:
        check_entries(saved, self.made_with, "the run's settings")
        for name, here in self.made_with.items():
            if saved[name] != here:
                raise ValueError(
                    f"The saved run was made with {name}={saved[name]}, this one with {name}={here}: prepare it alike."
                )

    def _check_density(self) -> None:
        """Energies that were saved, against those of this run's model at the same place."""
        here = self._renew(self.state, self.state.position).energy
        if not agrees(here, self.state.energy):
            raise ValueError(
                f"The log density where the saved chain 0 is was {float(-self.state.energy[0]):.6g}, but this run's is "
                f"{float(-here[0]):.6g}: restore into a run of the same model and data."
            )
