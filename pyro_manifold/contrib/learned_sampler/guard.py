r"""Guard of learned dynamics: notices chains that leave the posterior, by their own temperature and energy.

The stationary distribution of learned dynamics is right in the limit of short steps. With the steps that are used in
practice, a sampler can heat its momenta faster than its friction cools them, on a posterior unlike those of its
training. The chains then leave: momenta are far hotter than intended and do not cool, and the energy does not fall
below its lowest level so far. Chains on their way from a start far out are hot too, but they cool, or their energy
falls.

Temperature and energy are means over windows of at least `WINDOW` steps. During warm-up, chains that leave return to
where their energy was lowest, and all steps are halved from then on. After warm-up nothing is adapted, so that all
draws have the stationary distribution of one step size; the run ends instead, and the draws so far are kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.mechanics import Metrics
from pyro_manifold.infer.mcmc.sgmcmc import (
    IterationSettings,
    Schedule,
    StochasticState,
    StochasticSteps,
    value_at,
)
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, NotFiniteError, Problem, Statistics

WINDOW = 100
"""Least number of steps of a window: as long as a momentum lasts with a friction of 0.01."""
HOT = 4.0
"""Temperature, in units of the intended one, above which the momenta of many coordinates are far too hot."""
WARM = 1.5
"""The same in warm-up after steps were halved: the sampler is known to be bad here, and less heat is accepted."""
MOST_HALVINGS = 6
_COOLING, _FALLING = 0.8, 0.1
_RECORD: Block = ()
"""Key of the record in the state's memory; no block of sites is empty."""


class LeftPosteriorError(NotFiniteError):
    """Error of chains that leave the posterior while their values are still finite."""


class Window(NamedTuple):
    """Means over the steps of a window, ``(chains,)`` each.

    Attributes:
        temperature: kinetic temperature, in units of the intended one.
        energy: minus the log density, each on the batch of its step.
    """

    temperature: Tensor
    energy: Tensor


class Record(NamedTuple):
    """Measurements of a guarded run up to now, ``(chains,)`` each.

    Attributes:
        heat: sum of temperatures over the steps of the present window.
        energy: sum of energies over these steps.
        steps: number of these steps.
        heat_before: mean temperature of the window before; 0 if there is none.
        lowest: lowest mean energy of a window; infinite if there is none.
        halvings: how often the steps were halved.
    """

    heat: Tensor
    energy: Tensor
    steps: Tensor
    heat_before: Tensor
    lowest: Tensor
    halvings: Tensor

    @classmethod
    def begun(cls, energy: Tensor, halvings: Tensor | None = None) -> Record:
        """Return the record of a run before its first step."""
        zero = torch.zeros_like(energy)
        return cls(zero, zero, zero, zero, torch.full_like(energy, torch.inf), zero if halvings is None else halvings)

    @classmethod
    def of(cls, state: StochasticState) -> Record:
        """Return the record of a state."""
        return cls(*state.memory[_RECORD].unbind(-1))

    def into(self, state: StochasticState) -> StochasticState:
        """Return the state with this record."""
        return state._replace(memory={**state.memory, _RECORD: torch.stack(list(self), -1)})


def have_left(window: Window, heat_before: Tensor, lowest: Tensor, dimension: int, hot: float = HOT) -> Tensor:
    r"""Return which chains have left the posterior, ``(chains,)``.

    A chain has left if in two successive windows its momenta were hotter than ``hot`` times $1 + 4\sqrt{2/d}$ (the mean
    square of d momenta varies), if they have not cooled by a fifth in between, and if the energy has not fallen below
    the lowest of earlier windows by a tenth of the kinetic energy; or if its temperature or energy is not finite.

    Args:
        window: the last window.
        heat_before: mean temperature of the window before it.
        lowest: lowest mean energy of the windows before it.
        dimension: number of coordinates d.
        hot: temperature of momenta that are too hot.
    """
    limit = hot * (1 + 4 * math.sqrt(2 / max(1, dimension)))
    are_hot = (window.temperature > limit) & (heat_before > limit)
    kinetic = dimension / 2 * window.temperature
    stays = (window.temperature >= _COOLING * heat_before) & (window.energy >= lowest - _FALLING * kinetic)
    return (are_hot & stays) | ~(window.temperature.isfinite() & window.energy.isfinite())


class Guarded(NamedTuple):
    """Settings of a guarded iteration: those of `IterationSettings`, and two of the guard.

    Attributes:
        number: number of the iteration in its stage, from 1.
        metrics: masses of the blocks; None for those of the transition.
        fresh_momenta: whether momenta are redrawn, since masses have changed.
        warming_up: whether steps may still be halved.
        best: positions of the chains where their energy was lowest.
    """

    number: int
    metrics: Metrics | None
    fresh_momenta: bool
    warming_up: bool
    best: Blocks


class Guard(Adapter[Any]):
    """Adapter of a guarded run: it keeps the positions of the lowest energies during warm-up.

    Args:
        warmup_steps: iterations of warm-up.
        position: first positions.
        warn: whether to warn when steps are halved.
    """

    changing = ("_best",)

    def __init__(self, warmup_steps: int, position: Blocks, warn: bool) -> None:
        self._warmup_steps, self._warn = warmup_steps, warn
        self._best = {block: x.clone() for block, x in position.items()} if warmup_steps else {}

    def contribute(self, settings: IterationSettings, iteration: int) -> Guarded:
        return Guarded(*settings, iteration <= self._warmup_steps, self._best)

    def learn(self, seen: WarmUpIteration) -> None:
        """Keep the positions of chains whose energy is the lowest so far; warn if steps were halved."""
        old, new = Record.of(seen.before), Record.of(seen.after)
        if self._warn and bool((new.halvings > old.halvings).any()):
            self._warn_of_halving(seen.number, int(new.halvings[0]))
        better = new.lowest < old.lowest
        if bool(better.any()):
            self._best = {
                block: torch.where(_as_rows(better, x), seen.after.position[block], x)
                for block, x in self._best.items()
            }

    @staticmethod
    def _warn_of_halving(iteration: int, halvings: int) -> None:
        warnings.warn(
            f"Chains left the posterior in iteration {iteration} of warm-up (their momenta heated up and the energy "
            f"rose): they return, and the step size is 1/{2**halvings} of step_size from here on. Pass that step_size, "
            "or use a sampler that was trained on posteriors like this one, or SGHMC.",
            stacklevel=2,
        )


class GuardedSteps(StochasticSteps):
    """Transition of `StochasticSteps` under a guard.

    Args:
        *parts: arguments of `StochasticSteps`.
        problem: the problem of the run.
        begin: function from a state and the problem to the state with its first memory, with which a run begins.

    Raises:
        LeftPosteriorError: if chains leave after warm-up, or still do after `MOST_HALVINGS`.
    """

    def __init__(
        self, *parts: Any, problem: Problem, begin: Callable[[StochasticState, Problem], StochasticState]
    ) -> None:
        super().__init__(*parts)
        self._problem, self._begin = problem, begin
        self._dimension = sum(move.degrees_of_freedom(problem.position[b]) for b, move in self._mechanics.items())

    def __call__(
        self, state: StochasticState, settings: Any, random: torch.Generator
    ) -> tuple[StochasticState, Statistics]:
        record, may_return = Record.of(state), settings.warming_up
        halvings = int(record.halvings[0])
        steps, memory = self._halved(halvings), {k: x for k, x in state.memory.items() if k != _RECORD}
        alone = state._replace(memory=memory)
        try:
            after, found = StochasticSteps.__call__(steps, alone, settings, random)
        except NotFiniteError:
            if not may_return or halvings == MOST_HALVINGS:
                raise
            after, found = steps._not_finite(alone)
        record, left = self._measure(record, found, may_return)
        if not bool(left.any()):
            return record.into(after), found
        if not may_return or halvings == MOST_HALVINGS:
            self._stop_since_left(left, found, after.steps)
        return self._return(after, left | ~found["mean_lp"].isfinite(), settings, record, random), found

    def iterations_per_call(self, settings: Any) -> int:
        """Return 1: each iteration is measured before the next."""
        return 1

    def _halved(self, halvings: int) -> GuardedSteps:
        if not halvings:
            return self
        twin = copy(self)
        twin._plan = replace(self._plan, step_size=_Shortened(self._plan.step_size, 0.5**halvings))
        return twin

    def _of_energies(self, energies: Tensor) -> Statistics:
        return {"mean_lp": -energies.mean(0)}

    def _not_finite(self, state: StochasticState) -> tuple[StochasticState, Statistics]:
        """Return the state before an iteration that ended in values that are not finite, and its statistics."""
        state = state._replace(steps=state.steps + self._plan.num_steps)
        lost = torch.full_like(state.energy, torch.nan)
        names = ("kinetic_temperature", "hottest_kinetic_temperature", "mean_lp")
        return state, self._reported(state, [state.steps]) | dict.fromkeys(names, lost)

    def _measure(self, record: Record, found: Statistics, warming_up: bool) -> tuple[Record, Tensor]:
        """Add an iteration to the record; return which chains have left, if a window ends."""
        count = self._plan.num_steps
        heat = found["kinetic_temperature"] / found["temperature"].clamp(min=1.0)
        record = record._replace(
            heat=record.heat + count * heat,
            energy=record.energy - count * found["mean_lp"],
            steps=record.steps + count,
        )
        window = Window(record.heat / record.steps, record.energy / record.steps)
        none = torch.zeros_like(heat, dtype=torch.bool)
        if not bool(heat.isfinite().all()):
            return record, ~heat.isfinite()
        if record.steps[0] < WINDOW:
            return record, none
        hot = WARM if warming_up and record.halvings[0] else HOT
        left = have_left(window, record.heat_before, record.lowest, self._dimension, hot)
        begun = Record.begun(window.energy, record.halvings)
        lowest = torch.minimum(window.energy, record.lowest)
        return begun._replace(heat_before=window.temperature, lowest=lowest), left

    def _return(
        self, state: StochasticState, left: Tensor, settings: Guarded, record: Record, random: torch.Generator
    ) -> StochasticState:
        """Return chains to their best positions, with fresh momenta, and halve the steps from then on."""
        position = {
            block: torch.where(_as_rows(left, x), settings.best[block], x) for block, x in state.position.items()
        }
        energy, gradient = self.step.density(self._batch_of(state.steps))(position)
        state = state._replace(position=position, energy=energy, gradient=gradient)
        fresh = self.with_momentum(state, random, settings.metrics).momentum
        momentum = {block: torch.where(_as_rows(left, x), fresh[block], x) for block, x in state.momentum.items()}
        begun = Record.begun(energy, record.halvings + 1)._replace(lowest=record.lowest)
        return begun.into(self._begin(state._replace(momentum=momentum), self._problem))

    def _stop_since_left(self, left: Tensor, found: Statistics, steps: int) -> None:
        chains = left.nonzero().flatten().tolist()
        which = f"Chain {chains[0]}" if len(chains) == 1 else f"Chains {', '.join(map(str, chains[:3]))}"
        which += f" and {len(chains) - 3} more" if len(chains) > 3 else ""
        hottest = float(found["kinetic_temperature"][left].max())
        step_size = float(found["step_size"][0])
        raise LeftPosteriorError(
            f"{which} left the posterior by step {steps}: momenta are at a temperature of {hottest:.3g} instead of "
            f"{float(found['temperature'][0]):.3g} and do not cool, and the energy does not fall, with "
            f"step_size={step_size:.3g}: use a longer warm-up, which shortens steps where chains leave, half that "
            "step_size, a sampler trained on posteriors like this one, or SGHMC."
        )


class _Shortened:
    """Schedule of step sizes times a factor."""

    def __init__(self, schedule: Schedule, factor: float) -> None:
        self._schedule, self._factor = schedule, factor

    def __call__(self, step: int) -> float:
        return self._factor * value_at("step_size", self._schedule, step)


def _as_rows(chosen: Tensor, like: Tensor) -> Tensor:
    """Return a mask of chains in the shape of blocks ``(chains, ...)``."""
    return chosen.view(-1, *[1] * (like.dim() - 1))
