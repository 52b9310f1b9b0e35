"""The transition of stochastic-gradient kernels: so many steps on as many batches, all of them accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics
from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.sgmcmc.native import NativeSteps
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings, StochasticState
from pyro_manifold.infer.mcmc.states import Blocks, NotFiniteError, Statistics

Step = Callable[..., StochasticState]
GradientAt = Callable[[Blocks, int], tuple[Tensor, Blocks]]
"""Energy and Euclidean gradient of positions on the batch of a step, by the step's number."""

Integrator = Literal["splitting", "euler"]


@dataclass(frozen=True)
class Plan:
    """What the user asked of step sizes, temperatures and friction; see `SGHMC`.

    Attributes:
        step_size: ε.
        temperature: τ.
        num_steps: steps of an iteration.
        friction: α in one step.
        noise_estimate: β̂ in one step.
        resample_momentum: whether each iteration begins with fresh momenta.
        unit_masses: whether the metrics of the transition are those that steps move with.
    """

    step_size: Schedule
    temperature: Schedule
    num_steps: int
    friction: float = 0.0
    noise_estimate: float = 0.0
    resample_momentum: bool = False
    unit_masses: bool = True

    def at(self, number: int) -> StepSettings:
        """Settings of a step, by its number."""
        step_size = value_at("step_size", self.step_size, number)
        temperature = value_at("temperature", self.temperature, number)
        return StepSettings(step_size, temperature, self.friction, self.noise_estimate)


class Data(Saved):
    """Nothing is tuned; all that a run has to know again is the order of its batches, by their seed.

    Args:
        batches: where batches come from; None for a density on all data.
    """

    def __init__(self, batches: Saved | None) -> None:
        self.changing = () if batches is None else ("_batches",)  # type: ignore[misc]
        self._batches = batches

    def settings(self, iteration: int) -> None:
        """There are none: step sizes and temperatures follow from the number of steps in the state."""

    def learn(self, *_: object) -> None:
        """Nothing to learn."""


class StochasticSteps:
    """Steps along gradients of minibatches, for all chains together; nothing is rejected.

    The closing half of a step and the opening half of the next use one gradient, that of the batch of the step in
    between; so the batch of a step is the one on which it ends.

    Args:
        step: one of `steps`.
        gradient: energy and gradient of positions on the batch of a step.
        plan: step sizes, temperatures, friction.
        mechanics: how each block moves.
        metrics: masses of all blocks.

    Attributes:
        step: with mechanics and metrics.
        native: all steps of an iteration in one call, where there is such a thing.

    Raises:
        NotFiniteError: where a step leads to values that are not finite.
    """

    def __init__(
        self, step: Step, gradient: GradientAt, plan: Plan, mechanics: BlockMechanics, metrics: Metrics
    ) -> None:
        self.native: NativeSteps | None = None
        self.step = partial(step, mechanics=mechanics, metrics=metrics)
        self._gradient, self._plan = gradient, plan
        self._mechanics, self._metrics = mechanics, metrics

    def __call__(
        self, state: StochasticState, settings: None, random: torch.Generator
    ) -> tuple[StochasticState, Statistics]:
        plan, first = self._plan, state.steps
        if plan.resample_momentum:
            state = self.with_momentum(state, random)
        state, energies = self._all_steps(state, random)
        last = first + plan.num_steps - 1
        step_size = value_at("step_size", plan.step_size, last)
        temperature = value_at("temperature", plan.temperature, last)
        self._check(state, energies, first, step_size)
        statistics = {"step_size": step_size, "temperature": temperature, "n_steps": plan.num_steps}
        measured = {"kinetic_temperature": self._kinetic_temperature(state)} if plan.unit_masses else {}
        return self._restored(state), {
            "lp": -state.energy,
            **measured,
            **{name: torch.full_like(state.energy, value) for name, value in statistics.items()},
        }

    def _all_steps(self, state: StochasticState, random: torch.Generator) -> tuple[StochasticState, Tensor]:
        """The state at the end and the energies of all steps, ``(steps, chains)``."""
        plan, first = self._plan, state.steps
        at_once = self.native and self.native(state, plan.num_steps, random)
        if at_once:
            return at_once
        energies = []
        for number in range(first, first + plan.num_steps):
            on_batch = partial(self._on_batch, number=number + 1)
            state = self.step(state, on_batch, plan.at(number), random=random)._replace(steps=number + 1)
            energies.append(state.energy)
        return state, torch.stack(energies)

    def with_momentum(self, state: StochasticState, random: torch.Generator) -> StochasticState:
        """The same positions with fresh momenta, of the temperature at this step."""
        temperature = value_at("temperature", self._plan.temperature, state.steps)
        momentum = {
            block: move.draw_momentum(state.position[block], self._metrics[block].at(temperature), random)
            for block, move in self._mechanics.items()
        }
        return state._replace(momentum=momentum)

    def _kinetic_temperature(self, state: StochasticState) -> Tensor:
        """Twice the kinetic energy for each degree of freedom: τ on average, if nothing but friction and noise acts."""
        energies, freedom = torch.zeros_like(state.energy), 0
        for block, move in self._mechanics.items():
            x = state.position[block]
            energies = energies + move.kinetic_energy(x, state.momentum[block], self._metrics[block])
            freedom += move.degrees_of_freedom(x)
        return 2 * energies / freedom if freedom else energies

    def _on_batch(self, position: Blocks, number: int) -> tuple[Tensor, Blocks]:
        return self._gradient(position, number)

    def _restored(self, state: StochasticState) -> StochasticState:
        """Without the rounding that has gathered."""
        position = {block: move.restore(state.position[block]) for block, move in self._mechanics.items()}
        momentum = {
            block: move.restore_momentum(position[block], state.momentum[block])
            for block, move in self._mechanics.items()
        }
        return state._replace(position=position, momentum=momentum)

    def _check(self, state: StochasticState, energies: Tensor, first: int, step_size: float) -> None:
        """Looked at once for all steps, so that steps on a GPU wait for nobody."""
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
            f"{where} left the finite numbers at step {step}, with step_size={step_size:.3g}: take a smaller step_size "
            "or a start nearer to the mass (temperature=0 finds one), and look for NaN in the data."
        )
