"""The transition of stochastic-gradient kernels: so many steps on as many batches, all of them accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics, State, refresh
from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.sgmcmc.batches import NoBatches, PlateBatches
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings
from pyro_manifold.infer.mcmc.states import Blocks, Statistics
from pyro_manifold.target.batched import Batch

Step = Callable[..., Any]
BatchedGradient = Callable[[Blocks, Batch], tuple[Tensor, Blocks]]
Batches = NoBatches | PlateBatches
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
    """

    step_size: Schedule
    temperature: Schedule
    num_steps: int
    friction: float = 0.0
    noise_estimate: float = 0.0
    resample_momentum: bool = False


class Course(NamedTuple):
    """Settings of an iteration.

    Attributes:
        first_step: number of its first step, counted over the whole run.
        batches: where its batches come from.
    """

    first_step: int
    batches: Batches


class Schedules(Saved):
    """Where the run is in its data; step sizes and temperatures follow from the number of the iteration.

    Args:
        plan: what to do.
        batches: where batches come from.
    """

    changing = ("_batches",)

    def __init__(self, plan: Plan, batches: Batches) -> None:
        self._plan = plan
        self._batches = batches

    def settings(self, iteration: int) -> Course:
        """Settings of an iteration, counted from 1."""
        return Course((iteration - 1) * self._plan.num_steps, self._batches)

    def learn(self, *_: object) -> None:
        """Nothing to learn."""


class NotFiniteError(ArithmeticError):
    """A step that led to values that are not finite."""


class StochasticSteps:
    """Steps along gradients of minibatches, for all chains together; nothing is rejected.

    Args:
        step: one of `steps`.
        gradient: energy and gradient of positions on a batch.
        plan: step sizes, temperatures, friction.
        mechanics: how each block moves.
        metrics: masses of all blocks.
    """

    def __init__(
        self, step: Step, gradient: BatchedGradient, plan: Plan, mechanics: BlockMechanics, metrics: Metrics
    ) -> None:
        self._step = partial(step, mechanics=mechanics, metrics=metrics)
        self._gradient, self._plan = gradient, plan
        self._mechanics, self._metrics = mechanics, metrics

    def __call__(self, state: State, settings: Course, random: torch.Generator) -> tuple[State, Statistics]:
        plan = self._plan
        if plan.resample_momentum:
            state = refresh(state, mechanics=self._mechanics, metrics=self._metrics, random=random)
        step_size = temperature = 0.0
        for number in range(settings.first_step, settings.first_step + plan.num_steps):
            step_size = value_at("step_size", plan.step_size, number)
            temperature = value_at("temperature", plan.temperature, number)
            chosen = StepSettings(step_size, temperature, plan.friction, plan.noise_estimate)
            batch = settings.batches.draw(random)
            state = self._step(state, lambda x, batch=batch: self._gradient(x, batch), chosen, random=random)
        restored = {block: move.restore(state.position[block]) for block, move in self._mechanics.items()}
        momentum = {
            block: move.restore_momentum(restored[block], state.momentum[block])
            for block, move in self._mechanics.items()
        }
        state = state._replace(position=restored, momentum=momentum)
        self._check(state, step_size, settings.first_step + plan.num_steps)
        statistics = {"step_size": step_size, "temperature": temperature, "n_steps": plan.num_steps}
        return state, {
            "lp": -state.energy,
            **{name: torch.full_like(state.energy, value) for name, value in statistics.items()},
        }

    def _check(self, state: State, step_size: float, number: int) -> None:
        for block, x in state.position.items():
            finite = x.isfinite().flatten(1).all(1)
            if not bool(finite.all()):
                chains = (~finite).nonzero().flatten().tolist()
                raise NotFiniteError(
                    f"Site {' and '.join(map(repr, block))} of chain {chains[0]} is not finite at step {number}, with "
                    f"step_size={step_size:.3g}: take a smaller one."
                )
