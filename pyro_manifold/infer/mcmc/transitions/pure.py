"""Composition of a run with one pure transition, and defaults for Metropolis transitions without momenta."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_manifold.compiled import CompilationPolicy
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.density import Batch
from pyro_manifold.infer.mcmc.transitions.composition import CompiledCode, CompiledPart, Composition, Tuning
from pyro_manifold.infer.mcmc.transitions.executable import Executable
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.states import (
    Blocks,
    Noise,
    PositionState,
    S,
    Statistics,
    normal_like,
    uniform_like,
    with_step_sizes,
)
from pyro_manifold.store import Saved

T = TypeVar("T")

_OPERATORS_OF_A_STEP = 30  # in addition to those of the gradient, about
_DECAY = 0.6  # exponent of the gain; between 1/2 and 1, so that the noise of acceptance averages out


class StepSize(NamedTuple):
    """Settings of transitions with a step size and no masses.

    Attributes:
        step_size: ε, a number or ``(chains,)``.
        num_steps: number of steps of an iteration.
    """

    step_size: Tensor | float
    num_steps: int = 1


class AdaptedStepSize(Saved):
    r"""Step size of all chains, adapted in warm-up to a mean acceptance probability.

    Robbins–Monro steps on its logarithm: after iteration t of warm-up, $\log\varepsilon$ changes by
    $t^{-0.6}$ times the difference of the mean acceptance probability of the chains from the target.

    Args:
        step_size: initial ε.
        target: target acceptance probability, such as 0.234 for random walks and 0.574 for Langevin proposals.
        num_steps: number of steps of an iteration.

    Source: Andrieu & Thoms, A tutorial on adaptive MCMC, Statistics and Computing 18 (2008), section 5.1.2.
    """

    changing: ClassVar[tuple[str, ...]] = ("step_size",)

    def __init__(self, step_size: float, target: float, num_steps: int = 1) -> None:
        self.step_size, self._target, self._num_steps = float(step_size), target, num_steps

    def settings(self, iteration: int) -> StepSize:
        """Return ε and the number of steps."""
        return StepSize(self.step_size, self._num_steps)

    def learn(self, iteration: int, before: Any, after: Any, statistics: Statistics, random: torch.Generator) -> None:
        """Adapt ε to the acceptance probabilities of one iteration of warm-up."""
        if "acceptance_rate" not in statistics:
            raise ValueError(
                "AdaptedStepSize needs the statistic 'acceptance_rate', but the transition returns "
                f"{sorted(statistics)}: return those of `metropolis`, or use Fixed."
            )
        error = float(statistics["acceptance_rate"].mean()) - self._target
        self.step_size *= math.exp(error * iteration**-_DECAY)


class PlainTransition:
    """Base class of a `PureTransition` of `PositionState`, with settings `StepSize`.

    Subclasses define ``begin``, ``step`` and ``finish``. Noise is a standard normal number for each coordinate of each
    block, and a uniform number for each chain; a subclass that needs more overrides ``noise``.
    """

    def prepared(self, settings: StepSize, state: PositionState) -> StepSize:
        """Return the settings with the step size as a tensor ``(chains,)``."""
        return with_step_sizes(settings, state.energy)

    def noise(self, state: PositionState, random: torch.Generator) -> Noise:
        """Draw the noise of the proposal and of the Metropolis decision."""
        normal = {block: normal_like(x, random) for block, x in state.position.items()}
        return Noise(normal, uniform_like(state.energy, random))


def composition_of(
    problem: Problem,
    executable: Executable[S, T],
    tuning: Tuning[S, T],
    state: S | None = None,
    *,
    example: Callable[[], T] | None = None,
    learn_cost: Callable[[float], None] | None = None,
    compile_options: Mapping[str, Any] | None = None,
    warn: bool = True,
) -> Composition[S, T]:
    """Compose a run whose iterations are a pure transition, in native code once that is worthwhile.

    Args:
        problem: target with initial values.
        executable: ``Executable(transition, problem.density)`` of a pure transition whose states have entries
            ``position``, ``energy`` and ``gradient``.
        tuning: adaptation of its settings, which must have an entry ``num_steps``.
        state: initial state; `PositionState` at the initial values if None.
        example: returns settings at which native code is compared with the transition; the first ones if None.
        learn_cost: called with the cost of an iteration without its steps, in units of a step, once code is compiled.
        compile_options: options of `torch.compile` for the step, which then must not use noise, in place of native
            code; None to leave it as it is.
        warn: whether to warn if there is no native code for the model.
    """
    start: Any = PositionState(problem.position, *problem.potential(problem.position)) if state is None else state
    code = _Code(problem, executable, example or (lambda: tuning.settings(1)), learn_cost, compile_options, warn)

    def at_position(state: Any, position: Blocks) -> Any:
        energy, gradient = problem.potential(position)
        return state._replace(position=position, energy=energy, gradient=gradient)

    parts = {
        "step": CompiledPart(executable.step.graph, executable.step.difference),
        "trajectory": CompiledPart(executable.graph, executable.difference),
    }
    return Composition(start, [executable], tuning, at_position, CompiledCode(parts, code.policy()))


class _Code(Generic[S, T]):
    """Compiled code of an executable: by `torch.compile` before the run on request, else native code during the run."""

    def __init__(
        self,
        problem: Problem,
        executable: Executable[S, T],
        example: Callable[[], T],
        learn_cost: Callable[[float], None] | None,
        options: Mapping[str, Any] | None,
        warn: bool,
    ) -> None:
        self._problem, self._executable, self._example = problem, executable, example
        self._learn_cost, self._options, self._warn = learn_cost, options, warn

    def policy(self) -> CompilationPolicy:
        if self._options is not None:
            return CompilationPolicy(self._by_torch, at_once=True)
        possible = self._problem.potential_of_one_chain is not None and native_code_is_allowed()
        operators, size = _OPERATORS_OF_A_STEP + self._problem.operators, self._problem.size
        return CompilationPolicy(self._natively if possible else None, operators, size=size, fits=self._fits)

    def _fits(self) -> bool:
        graph = self._executable.graph
        if graph.backend != "native" or self._executable.is_native(self._example()):
            return True
        graph.use_reference()  # so that a saved state records the form of the following iterations
        return False

    def _by_torch(self, state: S) -> None:
        failure = "jit_compile=True had no effect, continuing without compilation: {reason}."
        failures = {"compiled": failure if self._warn else None}
        self._executable.step.replace(
            state, [self._example()], failures, contains=self._problem.batched.graph, options=self._options
        )

    def _natively(self, state: S) -> None:
        one = self._problem.potential_of_one_chain
        # A graph that is no longer in use has issued a warning.
        if one is None or not self._problem.batched.graph.is_graph or state.energy.device.type != "cpu":
            return
        example: Any = self._example()
        points: list[tuple[T, Batch]] = [(example._replace(num_steps=steps), {}) for steps in (1, 3)]
        self._executable.compile(state, points, lambda batch: one, warn=self._warn)
        if self._learn_cost is not None:
            self._learn_cost(self._executable.fixed_cost)
