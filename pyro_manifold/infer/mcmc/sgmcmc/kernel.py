"""What stochastic-gradient kernels share: configuration, minibatches, composition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar

import torch

from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer
from pyro_manifold.infer.mcmc.haste import Haste
from pyro_manifold.infer.mcmc.hmc.kernel import block_mechanics
from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics, Metric
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.native import allowed as native_code_is_allowed
from pyro_manifold.infer.mcmc.problem import Batched, Problem
from pyro_manifold.infer.mcmc.run import Parts
from pyro_manifold.infer.mcmc.sgmcmc.batches import LoaderBatches, Order, PlateBatches, check_order
from pyro_manifold.infer.mcmc.sgmcmc.native import NativeSteps
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Constant, Schedule, as_schedule
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import Data, GradientAt, Plan, Step, StochasticSteps
from pyro_manifold.infer.mcmc.states import Block, Blocks
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel
from pyro_manifold.target.batched import BatchedPotential, Sites
from pyro_manifold.target.loader import FromLoader, target_from_loader
from pyro_manifold.target.minibatch import MinibatchPotential, WholeData
from pyro_manifold.target.model import ModelTarget, Target, target_from_model

_OPERATORS_OF_A_STEP = 30  # beside those of the gradient, about


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
        scales: ``{site: scale}``, about the standard deviation of a site's posterior (in unconstrained space) beside
            that of others: the site takes ε times that. 1 for sites that it does not name.
        jit_compile: compile the model's density and gradient with `torch.compile`; falls back with a warning.
        jit_options: keyword arguments for `torch.compile`.
        **options: as in `Kernel`.
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]]
    steps_can_be_native: ClassVar[bool] = True

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
        scales: Mapping[str, float] | None = None,
        jit_compile: bool = False,
        jit_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, potential_fn, **options)
        check_positive_integer(num_steps=num_steps)
        self._num_steps = num_steps
        self._step_size = as_schedule("step_size", step_size)
        self._temperature = as_schedule("temperature", temperature)
        check_order(minibatches)
        if not isinstance(own_minibatches, bool):
            raise ValueError(f"own_minibatches={own_minibatches!r}, expected True or False.")
        self._minibatches: Order = minibatches
        self._own_minibatches = own_minibatches
        self._scales = dict(scales or {})
        check_positive(**{f"scales[{name!r}]": scale for name, scale in self._scales.items()})
        self._jit_compile, self._jit_options = jit_compile, dict(jit_options or {})

    def _configuration(self) -> dict[str, str]:
        """With schedules and scales; of a function of the user's only what it begins with."""
        schedules = {"step_size": self._step_size, "temperature": self._temperature}
        words = {name: _described(value) for name, value in schedules.items()}
        settings = {name: value for name, value in super()._configuration().items() if name != "value"}
        return {**settings, **words, "scales": repr(sorted(self._scales.items()))}

    @abstractmethod
    def step(self) -> Step:
        """The step, one of `steps`."""

    @abstractmethod
    def plan(self) -> Plan:
        """Step sizes, temperatures, friction."""

    def step_on(self, problem: Problem) -> Step:
        """The step for a problem, where it depends on that."""
        return self.step()

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        """The state to begin with: this one, and what else a step needs."""
        return state

    def target(self, initial_params: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        if self.model is None:
            if any(isinstance(arg, FromLoader) for arg in args):
                raise ValueError("data_loader gives a model its arguments, and potential_fn has none: pass a model.")
            return super().target(initial_params, args, kwargs)
        if args and isinstance(args[0], FromLoader):
            return target_from_loader(self.model, args[0], kwargs, **self.model_options)
        return target_from_model(self.model, args, kwargs, subsample=True, **self.model_options)

    def batched(self, target: Target, example: Sites) -> Batched:
        """On the batch of a step, where the model has its data in batches."""
        if not isinstance(target, ModelTarget) or target.minibatch_of is None or not example:
            return BatchedPotential(
                target.potential_fn, example, target.manifolds, compile=self._compile_options, warn=self._warn
            )
        value = next(iter(example.values()))
        chains = len(value) if self._own_minibatches else None
        options = (self._minibatches, chains, value.device, int(torch.randint(2**63 - 1, ())))
        batches: PlateBatches | LoaderBatches
        if target.loader is None:
            batches = PlateBatches(target.minibatch_of({}).plates, *options)
        else:
            batches = LoaderBatches(target.loader, target.minibatch_of, *options)
        return MinibatchPotential(
            target.minibatch_of,
            batches,
            example,
            target.manifolds,
            own=self._own_minibatches,
            compile=self._compile_options,
            warn=self._warn,
        )

    @property
    def _compile_options(self) -> dict[str, Any] | None:
        return self._jit_options if self._jit_compile else None

    def compose(self, problem: Problem, warmup_steps: int) -> Parts[StochasticState, None]:
        """One transition, whose steps see a new batch each."""
        self._check_manifolds(problem)
        mechanics = block_mechanics(problem, self.manifold_mechanics)
        metrics = self._metrics(problem)
        potential, gradient = potential_by_step(problem), gradients_of(problem)

        def renew(state: StochasticState, position: Blocks) -> StochasticState:
            energy, slopes = gradient(position, state.steps)
            return state._replace(position=position, energy=energy, gradient=slopes)

        def difference(state: StochasticState, chains: list[int]) -> str | None:
            return potential.difference_at(problem.layout.unpack(state.position), chains, state.steps)

        transition = StochasticSteps(self.step_on(problem), gradient, self.plan(), mechanics, metrics)
        start = StochasticState(problem.position, {}, *gradient(problem.position, 0), 0, {})
        state = self.begin(transition.with_momentum(start, problem.random), problem)
        batches = potential.batches
        data = Data(batches if isinstance(batches, PlateBatches | LoaderBatches) else None)
        native = transition.native = self._native(problem, transition.step, list(mechanics), state)
        if native is None:
            return Parts(state, [transition], data, renew, difference=difference)
        haste = Haste(native.compile, _OPERATORS_OF_A_STEP + native.operators)
        return Parts(state, [transition], data, renew, {"steps": native.graph}, difference, haste)

    def _native(self, problem: Problem, step: Step, blocks: list[Block], state: StochasticState) -> NativeSteps | None:
        """Steps as native code, if they are all alike and see one batch each."""
        alike = isinstance(self._step_size, Constant) and isinstance(self._temperature, Constant)
        can_be = self.steps_can_be_native and alike and not (self._jit_compile or self._own_minibatches)
        of_one_chain = isinstance(problem.batched, BatchedPotential | MinibatchPotential)
        if not (can_be and of_one_chain and state.position and native_code_is_allowed()):
            return None
        return NativeSteps(step, potential_by_step(problem), problem.layout, blocks, self.plan().at(0), state)

    def _check_manifolds(self, problem: Problem) -> None:
        for (name, *_), manifold in problem.manifolds.items():
            known = isinstance(manifold, tuple(self.manifold_mechanics))
            if not known and isinstance(manifold, Stiefel | Sphere):
                raise ValueError(
                    f"Site '{name}' is on {manifold!r}, and {type(self).__name__} moves in unconstrained space: take "
                    "OSGHMC, or give the site a transform to unconstrained space."
                )

    def _metrics(self, problem: Problem) -> dict[Block, Metric]:
        """Inverse masses, the squares of the scales of sites."""
        unknown = sorted(set(self._scales) - set(problem.initial_values))
        if unknown:
            raise ValueError(f"scales names {unknown}, but the model's sites are {sorted(problem.initial_values)}.")
        squares = {
            name: torch.full_like(value[:1], self._scales.get(name, 1.0) ** 2)
            for name, value in problem.initial_values.items()
        }
        packed = problem.layout.pack(squares)
        return {
            block: Metric.from_inverse_mass(x.flatten()[:1] if block in problem.manifolds or not self._scales else x)
            for block, x in packed.items()
        }


def potential_by_step(problem: Problem) -> MinibatchPotential | WholeData:
    """Energies and gradients by site on the batch of a step, by the step's number."""
    return problem.batched if isinstance(problem.batched, MinibatchPotential) else WholeData(problem.batched)


def gradients_of(problem: Problem) -> GradientAt:
    """Energy and Euclidean gradient of blocks on the batch of a step, by the step's number."""
    potential = potential_by_step(problem)

    def gradient(position: Blocks, step: int) -> tuple[torch.Tensor, Blocks]:
        energy, slopes = potential(problem.layout.unpack(position), step)
        return energy, problem.layout.pack(slopes)

    return gradient


def _described(schedule: Schedule) -> str:
    """A schedule in words; of a function of the user's what it begins with."""
    return repr(schedule) if is_dataclass(schedule) else f"a function, {schedule(0)} at first"
