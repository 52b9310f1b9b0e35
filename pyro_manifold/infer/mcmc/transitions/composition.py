"""Composition of a run: transitions, their adaptation, and graphs of the density."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from pyro_manifold.compiled import CompilationPolicy, Verified
from pyro_manifold.infer.mcmc.transitions.states import Blocks, S, Statistics, Transition
from pyro_manifold.store import Saved, Serialisable

T = TypeVar("T")
S_contra = TypeVar("S_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_GOLDEN_RATIO = (1 + 5**0.5) / 2


def weyl_sequence(iteration: int) -> float:
    """Return an element of the golden-ratio sequence in [0, 1), which is evenly spread over any range of iterations."""
    return (iteration * _GOLDEN_RATIO) % 1


class Tuning(Protocol[S_contra, T_co]):
    """Protocol of the adaptation: it chooses the settings of transitions and updates them during warm-up."""

    def settings(self, iteration: int) -> T_co:
        """Return the settings of one iteration, counted from 1."""

    def learn(
        self, iteration: int, before: S_contra, after: S_contra, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Adapt to one iteration of warm-up, by the states before and after the last transition and all statistics."""

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the adapted state as tensors, numbers and strings."""

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore a saved state."""


class Fixed(Saved, Generic[T]):
    """Constant settings without adaptation."""

    def __init__(self, settings: T) -> None:
        self._settings = settings

    def settings(self, iteration: int) -> T:
        return self._settings

    def learn(self, *_: object) -> None:
        """Do nothing, since the settings are constant."""


class CompiledPart(NamedTuple):
    """Code in place of steps or iterations, which is compared with them during a run.

    Attributes:
        graph: the code, with what it replaces.
        difference: function of a state, settings and a generator; describes the difference from what the code replaces,
            or returns None if they agree. None for a graph that is compared with the density alone.
        slow: whether it is compared at the end only, since what it replaces is slow to evaluate.
    """

    graph: Verified
    difference: Callable[[Any, Any, torch.Generator], str | None] | None = None
    slow: bool = False


@dataclass(frozen=True)
class CompiledCode:
    """Code of a run in addition to the graph of its potential.

    Attributes:
        parts: code by the name of what it replaces, such as ``"step"`` or ``"trajectory"``.
        policy: when to compile native code.
        density_difference: function of a state and some chains; describes the difference between the graph of the
            density and the model there. None uses the comparison of the problem's potential.
    """

    parts: Mapping[str, CompiledPart] = field(default_factory=dict)
    policy: CompilationPolicy = field(default_factory=lambda: CompilationPolicy(None))
    density_difference: Callable[[Any, list[int]], str | None] | None = None


class Observer:
    """Additions of a kernel to the reports of its runs; by default none."""

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return entries for `MCMC.diagnostics`."""
        return {}

    def summary_lines(self) -> list[str]:
        """Return lines below the table of `MCMC.summary`."""
        return []

    def max_temperature_site(self, state: Any) -> str | None:
        """Return the site with the highest momentum temperature; None where temperatures are not measured."""
        return None


@dataclass
class Composition(Generic[S, T]):
    """Composition of a run, as returned by `Kernel.compose`.

    Attributes:
        state: initial state of the chains.
        transitions: transitions of one iteration, in this order; the last one is adapted.
        tuning: adaptation of the settings of all transitions.
        at_position: function of a state and a position; returns the state there, with the density re-evaluated.
        code: code in place of steps or iterations, and when it is compiled.
        observers: what is added to the reports of the run.
    """

    state: S
    transitions: Sequence[Transition[S, T]]
    tuning: Tuning[S, T]
    at_position: Callable[[S, Blocks], S]
    code: CompiledCode = field(default_factory=CompiledCode)
    observers: Sequence[Observer] = ()
