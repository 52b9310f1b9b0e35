"""Transition of stochastic-gradient kernels: several steps, each on a new batch, without a Metropolis test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from pyro_manifold.density import Batches, shapes_of
from pyro_manifold.infer.mcmc.mechanics import Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.temperature import KineticTemperature
from pyro_manifold.infer.mcmc.transitions import (
    Density,
    Executable,
    Noise,
    NotFiniteError,
    Statistics,
    Together,
    of_tensors,
    unbound,
)

_BATCHES_TO_CHECK = 4
_LARGEST_PATH = 2**21
"""Largest number of coordinates in the positions of all steps of a call, which are kept until they are returned."""

Integrator = Literal["splitting", "euler"]


@dataclass(frozen=True)
class StepSchedules:
    """User settings of step sizes, temperatures and friction; see `SGHMC`.

    Attributes:
        step_size: ε.
        temperature: τ.
        num_steps: number of steps of an iteration.
        friction: α per step.
        noise_estimate: β̂ per step.
        resample_momentum: whether momenta are fully refreshed before each iteration.
        unit_masses: whether steps use the metrics of the transition.
        momentum_variance: stationary variance of a momentum of unit mass at temperature 1, in the limit of short steps.
        heating: increase of the variance of a standard normal coordinate per ε²σ², by gradient noise of variance σ²
            and for short steps, ε the time of a step.
        step_is_squared_time: whether the step size is the square of the time of a step, as for `SGLD`.
    """

    step_size: Schedule
    temperature: Schedule
    num_steps: int
    friction: float = 0.0
    noise_estimate: float = 0.0
    resample_momentum: bool = False
    unit_masses: bool = True
    momentum_variance: float = 1.0
    heating: float = 0.25
    step_is_squared_time: bool = False

    def at(self, number: int) -> StepSettings:
        """Return the settings of a step, given by its number."""
        step_size = value_at("step_size", self.step_size, number)
        temperature = value_at("temperature", self.temperature, number)
        return StepSettings(step_size, temperature, self.friction, self.noise_estimate)

    def squared_time(self, step_size: float) -> float:
        """Return the square of the time of a step."""
        return step_size if self.step_is_squared_time else step_size**2


class IterationSettings(NamedTuple):
    """Settings of an iteration; step sizes depend on the step number.

    Attributes:
        number: number of the iteration in its stage, from 1.
        metrics: masses of the blocks; None for those of the transition.
        fresh_momenta: whether momenta are redrawn, since masses have changed.
    """

    number: int
    metrics: Metrics | None = None
    fresh_momenta: bool = False


StepExecutable = Executable[StochasticState, StepSettings]


class StochasticSteps:
    """Transition of several minibatch gradient steps, vectorised over chains, without a Metropolis test.

    The second half kick of a step and the first half kick of the next use the same gradient, on the batch of the
    former: the batch of a step is the one on which it ends.

    Args:
        step: step on a batch.
        batches: function from a step number to the batch of that step.
        plan: schedules of step sizes, temperatures and friction.
        mechanics: mechanics of the blocks.
        metrics: masses of the blocks.
        reported: function from states to statistics of the kernel.

    Raises:
        NotFiniteError: if a step leads to values that are not finite.
    """

    def __init__(
        self,
        step: StepExecutable,
        batches: Batches,
        plan: StepSchedules,
        mechanics: ProductMechanics,
        metrics: Metrics,
        reported: Callable[[StochasticState], Statistics],
    ) -> None:
        self.step, self._batch_of, self._plan = step, batches, plan
        self._mechanics, self._metrics, self._of_kernel = mechanics, metrics, reported
        self._shapes, self._numbers = shapes_of(batches(0)), 0

    def __call__(
        self, state: StochasticState, settings: IterationSettings, random: torch.Generator
    ) -> tuple[StochasticState, Statistics]:
        plan, first = self._plan, state.steps
        if plan.resample_momentum or settings.fresh_momenta:
            state = self.with_momentum(state, random, settings.metrics)
        made = self._in_one_call(state, [settings], random)
        if made is not None:
            ends = self._ends(state, made[0], [settings], [])
            state = ends.at(0)
            self._check(state, made[0].energy[0], first)
            return state, unbound(ends.statistics, 1)[0]
        energies, heat = [], self._heat(settings)
        for number in range(first, first + plan.num_steps):
            state = self._one_step(state, self._at(number, settings), number, random)
            energies.append(state.energy)
            if plan.unit_masses:
                heat.add(state.position, state.momentum)
        together = torch.stack(energies)
        self._check(state, together, first)
        state, statistics = self._measured(state, heat, settings.number)
        state, _ = self.step.transition.finish(state, (), plan.at(first), Noise({}))
        return state, self._reported(state, [state.steps]) | statistics | self._of_energies(together)

    def _of_energies(self, energies: Tensor) -> Statistics:
        """Return additional statistics of the energies of all steps, ``(steps, chains)``."""
        return {}

    def _at(self, number: int, settings: IterationSettings) -> StepSettings:
        """Return the settings of a step, given by its number, with the masses of its iteration."""
        return self._plan.at(number)._replace(metrics=settings.metrics)

    def _heat(self, settings: IterationSettings) -> KineticTemperature:
        return KineticTemperature(self._mechanics, self._metrics if settings.metrics is None else settings.metrics)

    def _one_step(
        self, state: StochasticState, settings: StepSettings, number: int, random: torch.Generator
    ) -> StochasticState:
        transition, potential = self.step.transition, self.step.density(self._batch_of(number + 1))
        moved: StochasticState = transition.step(state, settings, transition.noise(state, random), potential)
        return moved._replace(steps=number + 1)

    def _reported(self, state: StochasticState, steps: Sequence[int]) -> Statistics:
        """Return the statistics that follow from the schedules, and those of the kernel.

        Args:
            state: state at the ends of iterations, ``(chains, ...)`` or ``(iterations, chains, ...)``.
            steps: number of steps before each of these ends.
        """
        plan, energy = self._plan, state.energy
        reported = {"lp": -energy, "n_steps": torch.full_like(energy, plan.num_steps)}
        for name, schedule in (("step_size", plan.step_size), ("temperature", plan.temperature)):
            values = energy.new_tensor([value_at(name, schedule, number - 1) for number in steps])
            reported[name] = values.reshape(-1, *[1] * (energy.dim() - 1)).expand_as(energy)
        return reported | self._of_kernel(state)

    # ---- several iterations in one call -------------------------------------------------------------------------

    def iterations_per_call(self, settings: IterationSettings) -> int:
        """Return the number of iterations worth batching into one call.

        It ends before the hottest coordinate is chosen again, see `_measured`; it is 1 for resampled momenta, and for
        batches of a loader, which cannot be repeated.
        """
        plan = self._plan
        if plan.resample_momentum or not self._batch_of.repeatable:
            return 1
        worth = self.step.iterations_per_call(self._at(0, settings))
        fit = min(worth, _LARGEST_PATH // max(1, self._numbers)) // plan.num_steps
        return max(1, min(fit, (1 << (settings.number - 1).bit_length()) - settings.number))

    def iterate(
        self,
        state: StochasticState,
        settings: Sequence[IterationSettings],
        random: torch.Generator,
        *,
        rewindable: bool = True,
    ) -> Together[StochasticState] | None:
        """Run iterations in one call of native code, up to the first that is not finite; see `BatchedIterations`."""
        before, found = random.get_state(), self._in_one_call(state, settings, random)
        assert found is not None
        path, after = found
        finite = path.energy.isfinite().flatten(1).all(1)
        for x in path.position.values():
            finite = finite & x.isfinite().flatten(1).all(1)
        whole = len(settings) if bool(finite.all()) else int((~finite).nonzero()[0])
        if whole == len(settings):
            return self._ends(state, path, settings, after)
        random.set_state(after[whole - 1] if whole else before)
        if not whole:
            return None
        return self._ends(state, of_tensors(lambda x: x[:whole], path), settings[:whole], after[:whole])

    def _in_one_call(
        self, state: StochasticState, iterations: Sequence[IterationSettings], random: torch.Generator
    ) -> tuple[StochasticState, list[Tensor]] | None:
        """Return all states ``(iterations, steps, chains, ...)``, and the generator's state after each iteration.

        None if there is no native code for them.
        """
        steps, settings = self._plan.num_steps, self._at(state.steps, iterations[0])
        if not self.step.is_native(settings):
            return None
        batches = [self._batch_of(state.steps + k) for k in range(1, len(iterations) * steps + 1)]
        if any(shapes_of(batch) != self._shapes for batch in batches):
            return None  # the last batch of a loader is smaller
        noise, after = [], []
        for _ in iterations:
            noise += [self.step.transition.noise(state, random) for _ in range(steps)]
            after.append(random.get_state())
        fresh = list(zip(noise, batches, strict=True))
        path, _ = self.step.path(without_counts(state), settings, [1] * len(fresh), fresh)
        apart: StochasticState = of_tensors(lambda x: x.unflatten(0, (len(iterations), steps)), path)
        return apart, after

    def _ends(
        self,
        state: StochasticState,
        path: StochasticState,
        settings: Sequence[IterationSettings],
        random: list[Tensor],
    ) -> Together[StochasticState]:
        """Return states and statistics at the ends of iterations, from all steps ``(iterations, steps, ...)``."""
        plan, heat = self._plan, self._heat(settings[0])
        if plan.unit_masses:
            heat.add_paths(path.position, path.momentum)
        ends = of_tensors(lambda x: x[:, -1], path)._replace(heat=state.heat, hottest=state.hottest)
        measured, statistics = self._measured(ends, heat, settings[-1].number)
        steps = [state.steps + (k + 1) * plan.num_steps for k in range(len(settings))]
        states = [
            each._replace(steps=number) for each, number in zip(unbound(measured, len(steps)), steps, strict=True)
        ]
        return Together(ends, self._reported(ends, steps) | statistics, states.__getitem__, random)

    def compile(self, state: StochasticState, density: Density, settings: IterationSettings) -> None:
        """Compile the steps of iterations to native code, and use it from now on if it agrees with the original.

        There is no warning otherwise, since native code is not faster for networks with many layers.

        Args:
            state: current state, at which steps are traced and compared.
            density: density of one chain, as steps evaluate it.
            settings: settings of an iteration.
        """
        self._numbers = sum(x.numel() for x in state.position.values())
        coming = map(self._batch_of, range(state.steps + 1, state.steps + 1 + _BATCHES_TO_CHECK))
        alike = list(islice((batch for batch in coming if shapes_of(batch) == self._shapes), 2))
        points = [(self._at(state.steps, settings), batch) for batch in alike]
        if points:
            self.step.compile(without_counts(state), points, density, warn=False)

    def difference(self, state: StochasticState, settings: IterationSettings, random: torch.Generator) -> str | None:
        """Describe the difference between native code and the step, on the last batch; None if they agree."""
        batch = self._batch_of(state.steps)  # not on the next one, which may be beyond the end of a loader
        if shapes_of(batch) != self._shapes:
            return None
        return self.step.difference(without_counts(state), self._at(state.steps, settings), random, batch)

    def _measured(
        self, state: StochasticState, heat: KineticTemperature, iteration: int
    ) -> tuple[StochasticState, Statistics]:
        """Compute temperatures of this iteration: of all momenta, and of the coordinate that was hottest before.

        The hottest coordinate is chosen by other iterations than those in which it is measured, since the largest of
        many temperatures is biased upwards: it is chosen again after 1, 2, 4, 8 and so on iterations, by those since
        the last choice.
        """
        if not self._plan.unit_masses:
            return state, {}
        found = {
            "kinetic_temperature": heat.mean(state.energy),
            "hottest_kinetic_temperature": heat.of_part(state.hottest, state.energy),
        }
        total = heat.added_to({} if iteration == 1 else state.heat)
        if iteration & (iteration - 1) == 0:
            state = state._replace(hottest=heat.hottest(total))
            total = {block: torch.zeros_like(sums) for block, sums in total.items()}
        state = state._replace(heat=total)
        return state, {name: value / self._plan.momentum_variance for name, value in found.items()}

    def with_momentum(
        self, state: StochasticState, random: torch.Generator, metrics: Metrics | None = None
    ) -> StochasticState:
        """Return the same positions with fresh momenta, at the temperature of this step."""
        temperature = value_at("temperature", self._plan.temperature, state.steps)
        noise = self._mechanics.noise(state.position, random)
        metrics = at_temperature(self._metrics if metrics is None else metrics, temperature)
        return state._replace(momentum=self._mechanics.momentum_from(noise, state.position, metrics))

    def _check(self, state: StochasticState, energies: Tensor, first: int) -> None:
        """Raise an error if a value is not finite; one check for all steps avoids synchronising with a GPU."""
        finite = energies.isfinite()
        if not bool(finite.all()):
            step, chain = (~finite).nonzero()[0].tolist()
            self._stop(state, chain, first + step + 1)
        for x in state.position.values():
            wrong = (~x.isfinite().flatten(1).all(1)).nonzero().flatten()
            if len(wrong):
                self._stop(state, int(wrong[0]), first + len(energies))

    def _stop(self, state: StochasticState, chain: int, step: int) -> NoReturn:
        sites = [name for block, x in state.position.items() if not x[chain].isfinite().all() for name in block]
        more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
        names = ", ".join(repr(name) for name in sites[:3]) + more
        what = f"{names} of chain {chain}" if sites else f"chain {chain}"
        step_size = value_at("step_size", self._plan.step_size, step - 1)
        where = f"Site {what}" if len(sites) == 1 else f"Sites {what}" if sites else f"The log density of {what}"
        raise NotFiniteError(
            f"{where} became NaN or infinite at step {step}, with step_size={step_size:.3g}: use a smaller "
            "step_size or initial values nearer to the typical set (such as from a run with temperature=0), and "
            "check the data for NaN."
        )


def without_counts(state: StochasticState) -> StochasticState:
    """Return the part of a state that is updated by a step."""
    return state._replace(steps=0, heat={}, hottest=0)
