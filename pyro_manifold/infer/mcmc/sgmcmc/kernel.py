"""Base class of stochastic-gradient kernels: configuration, minibatches, and composition of runs."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import torch

from pyro_manifold.compiled import CompilationPolicy
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.density import BatchedDensity, Batches, Order, Sites, Target, check_order
from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metric, ProductMechanics, block_mechanics
from pyro_manifold.infer.mcmc.sgmcmc.schedules import (
    Constant,
    CosineCycles,
    PolynomialDecay,
    Schedule,
    as_schedule,
)
from pyro_manifold.infer.mcmc.sgmcmc.site_masses import SiteMasses
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StochasticState, StochasticStep
from pyro_manifold.infer.mcmc.sgmcmc.temperature import TemperatureOfSites, no_heat
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings, StepSchedules, StochasticSteps
from pyro_manifold.infer.mcmc.sgmcmc.tuning import BatchAdaptation, Scales, checked_scales
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    CompiledCode,
    CompiledPart,
    Composition,
    Density,
    Executable,
    Observer,
    Problem,
    Statistics,
)
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel

_OPERATORS_OF_A_STEP = 30  # in addition to those of the gradient, about
_MOST_COORDINATES = 2**14
"""Largest number of coordinates of a chain in native code: more do not fit into a processor's cache, and matrix
products then dominate the time."""
_STEPS_DESCRIBED = (0, 1, 10, 100, 1000, 10_000, 100_000)


class StochasticGradientKernel(Kernel):
    """Base class of kernels with stochastic gradients; a subclass defines the step and its mechanics on manifolds.

    ``manifold_mechanics`` contains the mechanics of each supported manifold, none by default. Steps with friction
    override ``plan``.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the step number.
        num_steps: number of steps of an iteration.
        temperature: τ, a number or a function of the step number.
        minibatches: order of minibatches, see `Batches`.
        per_chain_minibatches: whether each chain has its own minibatches.
        scales: ``{site: scale}``, proportional to the posterior standard deviation of a site in unconstrained space;
            its step size is ε times its scale. 1 for sites that are not given. ``"adapt"`` learns them in warm-up, from
            the curvature of each site and the noise of its gradient; ε is then relative to the scales, and 0.1 is
            a good start for kernels with momenta.
        jit_compile: whether to compile the model's density and gradient with `torch.compile`; falls back with a
            warning.
        jit_options: keyword arguments for `torch.compile`.
        **options: as in `Kernel`.

    dtype and device are those of the model's tensors. Densities are with respect to Lebesgue measure in unconstrained
    space, with the Jacobian of transforms, and to the normalised Haar measure on manifolds.
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {}
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
        per_chain_minibatches: bool = False,
        scales: Scales | None = None,
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
        if not isinstance(per_chain_minibatches, bool):
            raise ValueError(f"per_chain_minibatches={per_chain_minibatches!r}, expected True or False.")
        self._minibatches: Order = minibatches
        self._own_minibatches = per_chain_minibatches
        self._scales = checked_scales(scales)
        self._jit_compile, self._jit_options = jit_compile, dict(jit_options or {})

    def configuration(self) -> dict[str, str]:
        """Return the configuration, with schedules and scales."""
        schedules = {"step_size": self._step_size, "temperature": self._temperature}
        words = {name: _described(value) for name, value in schedules.items()}
        scales = self._scales if isinstance(self._scales, str) else sorted(self._scales.items())
        return {**super().configuration(), **words, "scales": repr(scales)}

    @property
    def scales(self) -> dict[str, float]:
        """Scales of sites: those learned by the current run, which can be passed to another kernel; else those given.

        Raises:
            RuntimeError: for ``scales="adapt"`` without a run.
        """
        if not isinstance(self._scales, str):
            return dict(self._scales)
        tuning: Any = self.run.tuning
        return dict(tuning.masses.scales)

    @abstractmethod
    def step(self) -> Step:
        """Return the step function of the kernel."""

    def plan(self) -> StepSchedules:
        """Return the schedules of step sizes and temperatures, and the friction if the step has one."""
        return StepSchedules(self._step_size, self._temperature, self._num_steps)

    def step_on(self, problem: Problem) -> Step:
        """Return the step function for a problem, which may depend on the problem."""
        return self.step()

    def compiled_parts(self, step: Step) -> dict[str, CompiledPart]:
        """Return code within a step that has no native code as a whole."""
        return {}

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        """Return the initial state, with further quantities that the step needs."""
        return state

    def steps_of(self, problem: Problem) -> Callable[..., StochasticSteps]:
        """Return the constructor of the transition, with the arguments of `StochasticSteps`."""
        return StochasticSteps

    def tuning(
        self, batches: Batches, warmup_steps: int, masses: SiteMasses | None, state: StochasticState
    ) -> BatchAdaptation:
        """Return the adaptation of a run that begins at a state."""
        return BatchAdaptation(batches, warmup_steps, masses)

    def statistics(self, state: StochasticState, mechanics: ProductMechanics) -> Statistics:
        """Return additional statistics of the kernel, for states ``(chains, ...)`` or ``(iterations, chains, ...)``."""
        return {}

    @property
    def supports_minibatches(self) -> bool:
        return True

    def batched(self, target: Target, example: Sites) -> BatchedDensity:
        """Return the function for energies and gradients of all chains on the batch of a step."""
        batches = self._batches(target, example)
        own = self._own_minibatches and not batches.is_full
        options: Any = {"own": own, "compile": self._compile_options, "warn": self._warn}
        return BatchedDensity(target.on, batches, example, target.manifolds, **options)

    def _batches(self, target: Target, example: Sites) -> Batches:
        if not target.is_subsampled or not example:
            return Batches()
        value = next(iter(example.values()))
        chains = len(value) if self._own_minibatches else None
        options = (self._minibatches, chains, value.device, int(torch.randint(2**63 - 1, ())))
        return Batches(lambda arguments: target.on(arguments).plates, getattr(target, "loader", None), *options)

    @property
    def _compile_options(self) -> dict[str, Any] | None:
        return self._jit_options if self._jit_compile else None

    def compose(self, problem: Problem, warmup_steps: int) -> Composition[StochasticState, IterationSettings]:
        """Return the parts of a run: one transition, with a new batch at each of its steps."""
        self._check_manifolds(problem)
        mechanics = block_mechanics(problem, self.manifold_mechanics)
        masses = None
        if isinstance(self._scales, str):
            masses = SiteMasses(problem, mechanics, self.plan(), warmup_steps)
            if self._warn and warmup_steps == 0:
                warnings.warn(
                    "scales='adapt' without warm-up: scales are those of the initial position, which may be wrong by "
                    "orders of magnitude where the posterior is; pass warmup_steps.",
                    stacklevel=2,
                )
        metrics = self._metrics(problem) if masses is None else masses.metrics
        density, batches = problem.batched, problem.batched.batches

        def at_position(state: StochasticState, position: Blocks) -> StochasticState:
            energy, slopes = problem.at_step(state.steps)(position)
            return state._replace(position=position, energy=energy, gradient=slopes)

        def difference(state: StochasticState, chains: list[int]) -> str | None:
            return density.difference_at(problem.layout.unpack(state.position), chains, batches(state.steps))

        step = self.step_on(problem)
        executable = Executable(StochasticStep(step, mechanics, metrics), problem.density)
        reported = partial(self.statistics, mechanics=mechanics)
        transition = self.steps_of(problem)(executable, batches, self.plan(), mechanics, metrics, reported)
        heat = no_heat(mechanics, problem.position) if self.plan().unit_masses else {}
        start = StochasticState(problem.position, {}, *problem.at_step(0)(problem.position), 0, {}, heat, 0)
        state = self.begin(transition.with_momentum(start, problem.random), problem)
        data = self.tuning(batches, warmup_steps, masses, state)
        observers: list[Observer] = [
            TemperatureOfSites(mechanics, problem.layout),
            *([] if masses is None else [masses]),
        ]
        one = self._density_of_one_chain(problem)
        if one is None:
            code = CompiledCode(self.compiled_parts(step), density_difference=difference)
            return Composition(state, [transition], data, at_position, code, observers)

        def compile(state: StochasticState) -> None:
            if density.graph.is_graph:
                transition.compile(state, one, data.settings(1))

        policy = CompilationPolicy(compile, _OPERATORS_OF_A_STEP + problem.operators)
        code = CompiledCode({"steps": CompiledPart(executable.graph, transition.difference)}, policy, difference)
        return Composition(state, [transition], data, at_position, code, observers)

    def _density_of_one_chain(self, problem: Problem) -> Density | None:
        """Return the density compiled into native code; None if that is not possible."""
        alike = isinstance(self._step_size, Constant) and isinstance(self._temperature, Constant)
        can_be = self.steps_can_be_native and alike and not (self._jit_compile or self._own_minibatches)
        coordinates = sum(x[0].numel() for x in problem.position.values())
        if not (can_be and 0 < coordinates <= _MOST_COORDINATES and native_code_is_allowed()):
            return None
        on_cpu = all(x.device.type == "cpu" for x in problem.position.values())
        return problem.density_of_one_chain if on_cpu else None

    def _check_manifolds(self, problem: Problem) -> None:
        for (name, *_), manifold in problem.manifolds.items():
            known = isinstance(manifold, tuple(self.manifold_mechanics))
            if not known and isinstance(manifold, Stiefel | Sphere):
                raise ValueError(
                    f"Site '{name}' is on {manifold!r}, but {type(self).__name__} supports only unconstrained "
                    "space: use OSGHMC, or pass a transform of the site to unconstrained space."
                )

    def _metrics(self, problem: Problem) -> dict[Block, Metric]:
        """Return the metrics for given scales: inverse masses are the squares of the scales of sites."""
        assert not isinstance(self._scales, str)
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


def _described(schedule: Schedule) -> str:
    """Describe a schedule; a user-defined function is described by its values at some steps."""
    if isinstance(schedule, Constant | PolynomialDecay | CosineCycles):
        return repr(schedule)
    found = []
    for step in _STEPS_DESCRIBED:
        with suppress(Exception):  # a table may have an end
            found.append(f"{float(schedule(step)):.6g} at {step}")
    return f"a function, {', '.join(found)}"
