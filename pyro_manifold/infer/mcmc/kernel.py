"""Hamiltonian Monte Carlo as a Pyro kernel; what moves each site is left to mechanics."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.infer.mcmc.adaptation import CurvatureEstimator, MassAdaptation, VarianceEstimator
from pyro_manifold.infer.mcmc.compiled import WITHOUT_COMPILING
from pyro_manifold.infer.mcmc.layout import Layout, block_mechanics, square_blocks
from pyro_manifold.infer.mcmc.leapfrog import Block, Blocks, ChainState, State
from pyro_manifold.infer.mcmc.mechanics import Mechanics
from pyro_manifold.infer.mcmc.metropolis import TransitionInfo
from pyro_manifold.infer.mcmc.record import Record
from pyro_manifold.infer.mcmc.reflection import reflect
from pyro_manifold.infer.mcmc.system import Dynamics, HamiltonianSystem
from pyro_manifold.infer.mcmc.trajectory import golden_phase
from pyro_manifold.infer.mcmc.warmup import Estimators, WarmUp
from pyro_manifold.log_density import Target, finite_starts, starts, target_from_model, target_from_potential
from pyro_manifold.manifolds import Manifold
from pyro_manifold.potential import BatchedPotential, Sites


class HamiltonianKernel(MCMCKernel):
    """Shell around pure steps: builds the target, adapts, counts, and hands draws back to Pyro.

    A subclass says in ``manifold_mechanics`` how sites on each kind of manifold move. All tensors inside have
    a leading chain dimension: 1 under `pyro.infer.MCMC`, any number under `pyro_manifold.infer.MCMC`, which uses
    `setup_chains`, `advance` and `chain_diagnostics` where Pyro uses `setup`, `sample` and `diagnostics`.
    """

    manifold_mechanics: ClassVar[dict[type[Manifold], Mechanics]] = {}

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        step_size: float = 1,
        trajectory_length: float | None = None,
        num_steps: int | None = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        full_mass: bool | list[Block] = False,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: dict[str, Any] | None = None,
        ignore_jit_warnings: bool = False,
        target_accept_prob: float = 0.8,
        init_strategy: Callable[..., Any] = init_to_uniform,
        *,
        manifolds: Mapping[str, Manifold | Constraint] | None = None,
        trajectory_jitter: float = 0.5,
        reflection_probability: float = 0.5,
        min_stepsize: float = 1e-10,
        max_stepsize: float = 1e10,
    ) -> None:
        if (model is None) == (potential_fn is None):
            raise ValueError(f"{type(self).__name__} takes one of model and potential_fn.")
        if model is not None and manifolds is not None:
            raise ValueError("manifolds is for potential_fn; the sites of a model tell theirs by their support.")
        _check_positive(step_size=step_size, trajectory_length=trajectory_length, num_steps=num_steps)
        if not 0 < min_stepsize <= max_stepsize:
            raise ValueError(f"min_stepsize={min_stepsize}, max_stepsize={max_stepsize}, expected 0 < min ≤ max.")
        if not 0 < target_accept_prob < 1:
            raise ValueError(f"target_accept_prob={target_accept_prob}, expected a number between 0 and 1.")
        if not 0 <= trajectory_jitter < 1:
            raise ValueError(f"trajectory_jitter={trajectory_jitter}, expected a number in [0, 1).")
        if num_steps is not None and not _is_a(Integral, num_steps):
            raise ValueError(f"num_steps={num_steps!r}, expected an integer.")
        if not (_is_a(Real, reflection_probability) and 0 <= reflection_probability <= 1):
            raise ValueError(f"reflection_probability={reflection_probability!r}, expected a number in [0, 1].")
        self.model = model
        self.potential_fn = potential_fn
        self.transforms = transforms if model is None else None
        self._manifolds = manifolds
        self._reflection_probability = reflection_probability
        self._full_mass = full_mass
        self._site_transforms = transforms
        self._max_plate_nesting = max_plate_nesting
        self._jit_compile = jit_compile
        self._jit_options = jit_options
        self._ignore_jit_warnings = ignore_jit_warnings
        self._init_strategy = init_strategy
        self._warmup = WarmUp(
            step_size,
            trajectory_length,
            trajectory_jitter,
            num_steps,
            adapt_step_size,
            adapt_mass_matrix,
            target_accept_prob,
            (min_stepsize, max_stepsize),
        )
        self._reset()
        super().__init__()

    def _reset(self) -> None:
        self._given_params: Sites | None = None
        self._starts: Sites | None = None
        self._state: ChainState | None = None
        self._system: Dynamics[Any] | None = None
        self._potential: BatchedPotential | None = None
        self._iteration = 0
        self.last_num_steps = 0
        self._warmup_steps = 0
        self._mean_acceptance: Tensor | float = 0.0
        self._record = Record(0)

    # ---- one chain: what pyro.infer.MCMC calls --------------------------------------------------------------

    @property
    def initial_params(self) -> Sites | None:
        """Start of one chain: manifold sites on their manifold, all others unconstrained."""
        if self._starts is None:
            return self._given_params
        return {name: value[0] for name, value in self._starts.items()}

    @initial_params.setter
    def initial_params(self, params: Sites) -> None:
        self._given_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """`setup_chains` for one chain that starts at ``initial_params``."""
        given = self._given_params
        stacked = None if given is None else {name: torch.as_tensor(x).unsqueeze(0) for name, x in given.items()}
        self.setup_chains(1, warmup_steps, stacked, *args, **kwargs)

    def sample(self, params: Sites) -> Sites:
        """One transition from the current state (from ``params`` if there is none)."""
        if params and self._state is None:
            position = self._layout.pack({name: value.detach().unsqueeze(0) for name, value in params.items()})
            with pyro.validation_enabled(False):
                self._state = self._dynamics.state_at(position)
        return {name: value[0] for name, value in self.advance().items()}

    def diagnostics(self) -> dict[str, Any]:
        """Divergent iterations, acceptance rate, largest orthogonality error, and statistics of each iteration."""
        return self.chain_diagnostics()[0]

    def logging(self) -> OrderedDict[str, str]:
        return OrderedDict(
            [
                ("step size", f"{self.step_size:.2e}"),
                ("acc. prob", f"{float(self._mean_acceptance):.3f}"),
                ("divergences", f"{self._record.divergences}"),
            ]
        )

    def cleanup(self) -> None:
        self._reset()

    def clear_cache(self) -> None:
        """Forget the current state: the next call of `sample` starts from its argument."""
        self._state = None

    # ---- all chains -----------------------------------------------------------------------------------------

    def setup_chains(
        self, chains: int, warmup_steps: int, initial_params: Sites | None, *args: Any, **kwargs: Any
    ) -> None:
        """Build the target from the model's arguments, find starts and a first step size.

        Args:
            chains: number of chains.
            warmup_steps: number of iterations that adapt.
            initial_params: ``{site: (chains, ...)}``, or None to draw starts.
            *args: arguments of the model.
            **kwargs: arguments of the model.

        Raises:
            ValueError: for input that no run can come from; the sentence names the site or argument.
            NotImplementedError: if the model subsamples its data.
        """
        self._reset()
        self._warmup_steps = warmup_steps
        self._target = self._build_target(initial_params, args, kwargs)
        self.transforms = self._target.transforms
        with pyro.validation_enabled(False):
            self._starts = starts(self._target, chains, initial_params)
            self._chains = chains
            self._record = Record(chains)
            if not self._starts:
                return
            self._layout = Layout.build(self.initial_params or {}, self._target.manifolds, self._full_mass)
            self._mechanics = block_mechanics(self._layout, self._target, self.manifold_mechanics)
            self._square_blocks = self._find_square_blocks()
            potential = self._build_potential()
            self._starts = finite_starts(self._target, self._starts, initial_params is None, potential)
            self._system = self._build_system(potential)
            self._state = self._dynamics.state_at(self._layout.pack(self._starts))
            self._warmup.begin(
                warmup_steps, self._state, self._estimators(self._state.position), self._acceptance_of_one_step
            )

    def advance(self) -> Sites:
        """One transition of every chain; returns ``{site: (chains, ...)}``."""
        self._iteration += 1
        if self._state is None:
            return {}
        # Trajectories may leave the support while they diverge; that is for Metropolis to judge.
        with pyro.validation_enabled(False):
            # First, so that what is recorded of the trajectory belongs to the draw.
            reflected = self._reflect()
            before = self._state
            self.last_num_steps = self._warmup.next_num_steps(self._iteration)
            self._state, info = self._dynamics.transition(
                before, self.step_size, self.last_num_steps, self._warmup.masses.metrics
            )
            self._learn_and_record(before, self._state, info, reflected)
            if self._iteration % (8 if self._iteration <= self._warmup_steps else 64) == 1:
                self._watch_graph()
        return self._layout.unpack(self._state.position)

    def _reflect(self) -> Tensor | None:
        """Whether each chain's determinant changed sign; None if there is no such site."""
        flips = None
        for block in self._square_blocks:
            system = self._dynamics
            # No other system moves a site on its manifold.
            assert isinstance(system, HamiltonianSystem)
            assert isinstance(self._state, State)
            self._state, moved = reflect(self._state, block, system.potential, self._reflection_probability)
            flips = moved if flips is None else flips ^ moved
        return flips

    def _watch_graph(self) -> None:
        """A branch on values may be frozen in a trace though both sides agreed near the start.

        So the graph is compared with the model where chains are, two of them at a time.
        """
        assert self._state is not None
        some = int(golden_phase(self._iteration) * self._chains)
        chains = sorted({some, (some + 1) % self._chains})
        if self._potential is None or self._potential.holds_at(self._layout.unpack(self._state.position), chains):
            return
        self._dynamics.forget_compiled()
        self._state = self._dynamics.state_at(self._state.position)
        stage = "warm-up" if self._iteration <= self._warmup_steps else "sampling, draws so far may be wrong"
        warnings.warn(
            f"The traced density left the model's at iteration {self._iteration} (in {stage}): the model branches on "
            "values of sites; going on with a loop over chains, without tracing.",
            stacklevel=3,
        )

    def chain_diagnostics(self) -> list[dict[str, Any]]:
        """What `diagnostics` reports, for each chain."""
        return self._record.reports()

    # ---- tuning ---------------------------------------------------------------------------------------------

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self._warmup.trajectory_length

    @property
    def step_size(self) -> float:
        """Current ε; never longer than a trajectory."""
        return self._warmup.step_size

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory of mean length."""
        return self._warmup.num_steps

    @property
    def inverse_mass_matrix(self) -> Blocks:
        """Inverse mass of each block: a scalar for a manifold site, a vector or matrix for a group of others."""
        return self._warmup.masses.inverse_mass_matrix

    def _estimators(self, position: Blocks) -> Estimators:
        estimators: Estimators = {
            group: partial(VarianceEstimator, position[group], group in self._layout.dense)
            for group in self._layout.groups
        }
        for name, manifold in self._target.manifolds.items():
            block = (name,)
            estimators[block] = partial(CurvatureEstimator, position[block], self._mechanics[block], manifold)
        return estimators

    def _acceptance_of_one_step(self, step_size: float) -> float:
        assert self._state is not None
        _, info = self._dynamics.transition(self._state, step_size, 1, self._warmup.masses.metrics)
        return float(info.acceptance_probability.mean())

    def _learn_and_record(
        self, before: ChainState, state: ChainState, info: TransitionInfo, reflected: Tensor | None
    ) -> None:
        warming_up = self._iteration <= self._warmup_steps
        probability = info.acceptance_probability.mean()
        done = self._iteration if warming_up else self._iteration - self._warmup_steps
        previous = 0.0 if done == 1 else self._mean_acceptance
        self._mean_acceptance = previous + (probability - previous) / done
        if warming_up:
            self._warmup.update(self._iteration, self.last_num_steps, before, state, info)
            return
        self._record.add(info, self.step_size, self.last_num_steps, self._membership_error(state.position), reflected)

    def _membership_error(self, position: Blocks) -> Tensor | None:
        errors = [
            manifold.membership_error(position[(name,)]).reshape(self._chains, -1).amax(1)
            for name, manifold in self._target.manifolds.items()
        ]
        return torch.stack(errors).amax(0) if errors else None

    # ---- construction ---------------------------------------------------------------------------------------

    @property
    def _dynamics(self) -> Dynamics[Any]:
        if self._system is None:
            # After unpickling: graphs do not travel, they are made again on first use.
            self._system = self._build_system(self._build_potential())
        return self._system

    def _build_target(self, initial_params: Sites | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        if self.potential_fn is not None:
            return target_from_potential(self.potential_fn, initial_params, self._manifolds, self._site_transforms)
        assert self.model is not None
        return target_from_model(
            self.model,
            args,
            kwargs,
            transforms=self._site_transforms,
            max_plate_nesting=self._max_plate_nesting,
            init_strategy=self._init_strategy,
        )

    def _find_square_blocks(self) -> list[Block]:
        assert self._starts is not None
        blocks = square_blocks(self._target, self._starts)
        if blocks and not self._reflection_probability:
            names = ", ".join(f"'{name}'" for (name,) in blocks)
            warnings.warn(
                f"Site {names} is square: a continuous path never changes the sign of its determinant, so with "
                "reflection_probability=0 the draws follow the posterior given the sign of the start.",
                stacklevel=4,
            )
            return []
        return blocks

    def _build_potential(self) -> BatchedPotential:
        assert self._starts is not None
        warn = not self._ignore_jit_warnings
        return BatchedPotential(self._target.potential_fn, self._starts, self._target.manifolds, warn=warn)

    def _build_system(self, potential: BatchedPotential) -> Dynamics[Any]:
        layout, self._potential = self._layout, potential

        def of_blocks(position: Blocks) -> tuple[Tensor, Blocks]:
            energy, gradient = potential(layout.unpack(position))
            return energy, layout.pack(gradient)

        system = HamiltonianSystem(of_blocks, self._mechanics)
        if self._jit_compile and self._can_be_traced(potential, WITHOUT_COMPILING):
            assert self._starts is not None
            state = system.state_at(layout.pack(self._starts))
            metrics = MassAdaptation(self._estimators(state.position)).metrics
            system.compile(state, metrics, self._jit_options, warn=not self._ignore_jit_warnings)
        return system

    def _can_be_traced(self, potential: BatchedPotential, consequence: str) -> bool:
        """Whether a step may become a graph: not if the density could not.

        What defeats a tracer there, a branch on values say, would be frozen in the graph of the step.
        """
        if potential.mode == "loop" and not self._ignore_jit_warnings:
            warnings.warn(f"{consequence}: the model cannot be traced.", stacklevel=4)
        return potential.mode != "loop"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_system": None, "_potential": None}


def _is_a(kind: type, value: object) -> bool:
    """`isinstance`, for types like Real that type checkers do not know floats to have."""
    return isinstance(value, kind)


def _check_positive(**arguments: float | None) -> None:
    for name, value in arguments.items():
        if value is not None and not (_is_a(Real, value) and 0 < value < math.inf):
            raise ValueError(f"{name}={value!r}, expected a positive number.")
