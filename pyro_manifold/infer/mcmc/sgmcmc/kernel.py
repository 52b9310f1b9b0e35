"""What stochastic-gradient kernels share: configuration, minibatches, composition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.hmc.kernel import block_mechanics
from pyro_manifold.infer.mcmc.hmc.leapfrog import State, refresh
from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics, Metric
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.run import Parts
from pyro_manifold.infer.mcmc.sgmcmc.batches import NoBatches, Order, PlateBatches
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, as_schedule
from pyro_manifold.infer.mcmc.sgmcmc.transition import Course, Plan, Schedules, Step, StochasticSteps
from pyro_manifold.infer.mcmc.states import Blocks
from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import Batch
from pyro_manifold.target.minibatch import MinibatchPotential
from pyro_manifold.target.model import ModelTarget, Target, target_from_model


class StochasticGradientKernel(Kernel):
    """Steps along noisy gradients. A subclass says which steps, and which mechanics each manifold has.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the number of the step.
        num_steps: steps of an iteration.
        temperature: τ, a number or a function of the number of the step.
        minibatches: the order in which minibatches come, see `PlateBatches`.
        own_minibatches: whether each chain has its own.
        **options: as in `Kernel`.
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]]

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        step_size: float | Schedule,
        num_steps: int = 1,
        temperature: float | Schedule = 1.0,
        minibatches: Order = "shuffled",
        own_minibatches: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, potential_fn, **options)
        check_positive_integer(num_steps=num_steps)
        self._num_steps = num_steps
        self._step_size = as_schedule("step_size", step_size)
        self._temperature = as_schedule("temperature", temperature)
        self._minibatches: Order = minibatches
        self._own_minibatches = own_minibatches

    @abstractmethod
    def step(self) -> Step:
        """The step, one of `steps`."""

    @abstractmethod
    def plan(self) -> Plan:
        """Step sizes, temperatures, friction."""

    def begin(self, state: State, problem: Problem) -> Any:
        """The state to begin with: this one, and what else a step needs."""
        return state

    def target(self, initial_params: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        if self.model is None:
            return super().target(initial_params, args, kwargs)
        return target_from_model(
            self.model,
            args,
            kwargs,
            transforms=self._given_transforms,
            max_plate_nesting=self._max_plate_nesting,
            init_strategy=self._init_strategy,
            subsample=True,
        )

    def compose(self, problem: Problem, warmup_steps: int) -> Parts[Any, Course]:
        """One transition, whose steps see a new batch each."""
        mechanics = block_mechanics(problem, self.manifold_mechanics)
        metrics = {block: _unit_mass(x) for block, x in problem.position.items()}
        batches, gradient = self._data(problem)
        energy, slopes = problem.potential(problem.position)
        rest = {block: torch.zeros_like(x) for block, x in problem.position.items()}
        resting = State(problem.position, rest, energy, slopes)
        state = self.begin(refresh(resting, mechanics=mechanics, metrics=metrics, random=problem.random), problem)
        plan = self.plan()
        transition = StochasticSteps(self.step(), gradient, plan, mechanics, metrics)

        def moved(state: Any, position: Blocks) -> Any:
            energy, slopes = problem.potential(position)
            return state._replace(position=position, energy=energy, gradient=slopes)

        return Parts(state, [transition], Schedules(plan, batches), moved)

    def _data(self, problem: Problem) -> tuple[Any, Any]:
        """Where batches come from, and the gradient on one."""
        minibatch = problem.target.minibatch if isinstance(problem.target, ModelTarget) else None
        if minibatch is None:
            return NoBatches(), lambda position, batch: problem.potential(position)
        potential = MinibatchPotential(
            minibatch.potential_fn,
            problem.initial_values,
            problem.target.manifolds,
            own=self._own_minibatches,
            warn=self._warn,
        )
        device = next(iter(problem.initial_values.values())).device
        chains = problem.chains if self._own_minibatches else None

        def gradient(position: Blocks, batch: Batch) -> tuple[torch.Tensor, Blocks]:
            energy, slopes = potential(problem.layout.unpack(position), batch)
            return energy, problem.layout.pack(slopes)

        return PlateBatches(minibatch.plates, self._minibatches, chains, device), gradient


def _unit_mass(position: torch.Tensor) -> Metric:
    return Metric.from_inverse_mass(position.new_ones(1))
