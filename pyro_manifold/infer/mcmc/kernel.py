"""Hamiltonian Monte Carlo as a Pyro kernel; what moves each site is left to mechanics."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.adaptation import WarmupAdapter
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Transform

from pyro_manifold.infer.mcmc.adaptation import CurvatureEstimator, MassAdaptation, VarianceEstimator
from pyro_manifold.infer.mcmc.layout import Layout
from pyro_manifold.infer.mcmc.leapfrog import Block, Blocks, State, draw_momentum, kinetic_energy, leapfrog_step
from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics, Mechanics
from pyro_manifold.infer.mcmc.metropolis import TransitionInfo, metropolis
from pyro_manifold.log_density import BatchedPotential, Sites, Target, target_from_model, target_from_potential
from pyro_manifold.manifolds import Manifold

_LOG_ACCEPTANCE_OF_FIRST_STEP = math.log(0.8)  # the step size search looks for this, as Stan's does
_MAXIMUM_STEPS = 1024
_MAXIMUM_STEPS_BEFORE_MASSES = 16  # long trajectories are wasted while the masses are still wrong
_GOLDEN_RATIO = (1 + 5**0.5) / 2


class HamiltonianKernel(MCMCKernel):
    """Shell around pure steps: builds the target, adapts, counts, and hands draws back to Pyro.

    A subclass says in ``manifold_mechanics`` how sites on each kind of manifold move. All tensors inside have
    a leading chain dimension; under `pyro.infer.MCMC` it is 1.
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
        manifolds: Mapping[str, Manifold] | None = None,
        trajectory_jitter: float = 0.5,
        min_stepsize: float = 1e-10,
        max_stepsize: float = 1e10,
    ) -> None:
        if (model is None) == (potential_fn is None):
            raise ValueError(f"{type(self).__name__} takes one of model and potential_fn.")
        if model is not None and manifolds is not None:
            raise ValueError("manifolds is for potential_fn; the sites of a model tell theirs by their support.")
        _check_positive(step_size=step_size, trajectory_length=trajectory_length, num_steps=num_steps)
        if not 0 < target_accept_prob < 1:
            raise ValueError(f"target_accept_prob={target_accept_prob}, expected a number between 0 and 1.")
        if not 0 <= trajectory_jitter < 1:
            raise ValueError(f"trajectory_jitter={trajectory_jitter}, expected a number in [0, 1).")
        self.model = model
        self.potential_fn = potential_fn
        self.transforms = transforms if model is None else None
        if trajectory_length is None:
            trajectory_length = 2 * math.pi if num_steps is None else step_size * num_steps
        self.trajectory_length = trajectory_length
        self.trajectory_jitter = trajectory_jitter if num_steps is None else 0.0
        self._fixed_num_steps = num_steps or 0
        self._manifolds = manifolds
        self._full_mass = full_mass
        self._site_transforms = transforms
        self._max_plate_nesting = max_plate_nesting
        self._jit_compile = jit_compile
        self._jit_options = jit_options
        self._ignore_jit_warnings = ignore_jit_warnings
        self._init_strategy = init_strategy
        self._step_size_bounds = (min_stepsize, max_stepsize)
        self._adapter = WarmupAdapter(
            step_size,
            adapt_step_size=adapt_step_size,
            adapt_mass_matrix=adapt_mass_matrix,
            target_accept_prob=target_accept_prob,
        )
        self._reset()
        super().__init__()

    def _reset(self) -> None:
        self._initial_params: Sites | None = None
        self._state: State | None = None
        self._potential: BatchedPotential | None = None
        self._iteration = 0
        self._warmup_steps = 0
        self._accepted = 0
        self._mean_acceptance = 0.0
        self._divergences: list[int] = []
        self._orthogonality_error = 0.0

    # ---- what pyro.infer.MCMC calls -------------------------------------------------------------------------

    @property
    def initial_params(self) -> Sites | None:
        """Start of one chain: manifold sites on their manifold, all others unconstrained."""
        return self._initial_params

    @initial_params.setter
    def initial_params(self, params: Sites) -> None:
        self._initial_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Build the target from the model's arguments, find a start and a first step size.

        Raises:
            ValueError: for input that no run can come from; the sentence names the site or argument.
            NotImplementedError: if the model subsamples its data.
        """
        self._warmup_steps = warmup_steps
        self._target = self._build_target(args, kwargs)
        self._initial_params = self._target.initial_params
        self.transforms = self._target.transforms
        if not self._initial_params:
            return
        manifolds = self._target.manifolds
        self._announce_components()
        self._layout = Layout.build(self._initial_params, manifolds, self._full_mass)
        self._mechanics: dict[Block, Mechanics] = {
            (name,): self._mechanics_on(name, manifold) for name, manifold in manifolds.items()
        }
        self._mechanics |= {group: EuclideanMechanics() for group in self._layout.groups}
        self._potential = None
        self._state = self._state_at(self._initial_params)
        self._configure_adaptation(self._state.position)

    def sample(self, params: Sites) -> Sites:
        """One transition from the current state (from ``params`` if there is none)."""
        self._iteration += 1
        if not params:
            return params
        if self._state is None:
            self._state = self._state_at(params)
        # Trajectories may leave the support while they diverge; that is for Metropolis to judge.
        with pyro.validation_enabled(False):
            self._state, info = self._transition(self._state)
            self._record(self._state, info)
        return self._layout.unpack_chain(self._state.position, 0)

    def logging(self) -> OrderedDict[str, str]:
        return OrderedDict(
            [
                ("step size", f"{self.step_size:.2e}"),
                ("acc. prob", f"{self._mean_acceptance:.3f}"),
                ("divergences", f"{len(self._divergences)}"),
            ]
        )

    def diagnostics(self) -> dict[str, Any]:
        """Divergent iterations, acceptance rate and the largest orthogonality error of the draws."""
        draws = max(self._iteration - self._warmup_steps, 1)
        report = {"divergences": self._divergences, "acceptance rate": self._accepted / draws}
        if self._target.manifolds:
            report["orthogonality error"] = float(self._orthogonality_error)
        return report

    def cleanup(self) -> None:
        self._reset()

    def clear_cache(self) -> None:
        """Forget the current state: the next call of `sample` starts from its argument."""
        self._state = None

    # ---- tuning ---------------------------------------------------------------------------------------------

    @property
    def step_size(self) -> float:
        """Current ε; never longer than a trajectory, since on a flat target every ε would be accepted."""
        smallest, largest = self._step_size_bounds
        return max(smallest, min(self._adapter.step_size, largest, self.trajectory_length))

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory of mean length."""
        return self._steps_of(self.trajectory_length)

    @property
    def inverse_mass_matrix(self) -> Blocks:
        """Inverse mass of each block: a scalar for a manifold site, a vector or matrix for a group of others."""
        return self._masses.inverse_mass_matrix

    @property
    def _masses(self) -> MassAdaptation:
        return self._adapter.mass_matrix_adapter

    def _configure_adaptation(self, position: Blocks) -> None:
        estimators: dict[Block, Callable[[], Any]] = {
            group: partial(VarianceEstimator, position[group], group in self._layout.dense)
            for group in self._layout.groups
        }
        for name, manifold in self._target.manifolds.items():
            block = (name,)
            estimators[block] = partial(CurvatureEstimator, position[block], self._mechanics[block], manifold)
        self._adapter.mass_matrix_adapter = MassAdaptation(estimators)
        self._adapter.configure(
            self._warmup_steps,
            mass_matrix_shape={},
            find_reasonable_step_size_fn=self._find_step_size,
        )
        if self._adapter.adapt_step_size:
            self._adapter.reset_step_size_adaptation(position)

    def _find_step_size(self, _position: Blocks) -> float:
        """Double or halve ε until the acceptance probability of a single step crosses 0.8, as Stan does."""
        smallest, largest = self._step_size_bounds
        largest = min(largest, self.trajectory_length)
        step_size, growing = self.step_size, None
        assert self._state is not None
        while True:
            start = draw_momentum(self._state, mechanics=self._mechanics, metrics=self._masses.metrics)
            error = self._energy(self._step(start, step_size)) - self._energy(start)
            probability = (-error).exp().clamp(max=1).nan_to_num(nan=0).mean()
            grow = bool(probability.log() > _LOG_ACCEPTANCE_OF_FIRST_STEP)
            if growing is None:
                growing = grow
            if grow != growing:
                return step_size
            if not smallest <= step_size * (2.0 if growing else 0.5) <= largest:
                return step_size
            step_size *= 2.0 if growing else 0.5

    def _steps_of(self, length: float) -> int:
        # A hair is added before rounding down: (ε·k)/ε may fall short of k.
        return max(1, int(length / self.step_size + 1e-6))

    def _next_num_steps(self) -> int:
        """Trajectory lengths spread evenly around their mean, lest they resonate with a periodic orbit."""
        phase = (self._iteration * _GOLDEN_RATIO) % 1
        length = self.trajectory_length * (1 + self.trajectory_jitter * (2 * phase - 1))
        masses_pending = (
            self._adapter.adapt_mass_matrix
            and self._iteration <= self._warmup_steps
            and self._masses.windows_completed == 0
        )
        longest = _MAXIMUM_STEPS_BEFORE_MASSES if masses_pending else max(_MAXIMUM_STEPS, self._fixed_num_steps)
        return min(self._steps_of(length), longest)

    # ---- one transition -------------------------------------------------------------------------------------

    def _transition(self, state: State) -> tuple[State, TransitionInfo]:
        start = draw_momentum(state, mechanics=self._mechanics, metrics=self._masses.metrics)
        end = start
        for _ in range(self._next_num_steps()):
            end = self._step(end, self.step_size)
        error = self._energy(end) - self._energy(start)
        restored = {block: move.restore(end.position[block]) for block, move in self._mechanics.items()}
        return metropolis(start, end._replace(position=restored), error)

    def _step(self, state: State, step_size: float) -> State:
        return leapfrog_step(
            state,
            step_size,
            potential=self._evaluate,
            mechanics=self._mechanics,
            metrics=self._masses.metrics,
        )

    def _energy(self, state: State) -> Tensor:
        return state.energy + kinetic_energy(state, mechanics=self._mechanics, metrics=self._masses.metrics)

    def _evaluate(self, position: Blocks) -> tuple[Tensor, Blocks]:
        if self._potential is None:
            self._potential = self._build_potential()
        energy, gradient = self._potential(self._layout.unpack(position))
        return energy, self._layout.pack(gradient)

    def _state_at(self, params: Sites) -> State:
        position = self._layout.pack({name: value.detach().unsqueeze(0) for name, value in params.items()})
        with pyro.validation_enabled(False):
            energy, gradient = self._evaluate(position)
        return State(position, {block: torch.zeros_like(x) for block, x in position.items()}, energy, gradient)

    def _record(self, state: State, info: TransitionInfo) -> None:
        warming_up = self._iteration <= self._warmup_steps
        probability = info.acceptance_probability.mean()
        done = self._iteration if warming_up else self._iteration - self._warmup_steps
        if done == 1:
            self._mean_acceptance = 0.0
        self._mean_acceptance += (float(probability) - self._mean_acceptance) / done
        if warming_up:
            # At its upper bound the step size must not be pushed on: the dual average would lag behind.
            if self._adapter.step_size >= self.trajectory_length:
                probability = probability.clamp(max=self._adapter.target_accept_prob)
            self._adapter.step(self._iteration, state.position, probability, state.gradient)
            return
        self._accepted += int(info.accepted.sum())
        if bool(info.diverging.any()):
            self._divergences.append(done - 1)
        for name, manifold in self._target.manifolds.items():
            error = manifold.membership_error(state.position[(name,)]).max()
            self._orthogonality_error = max(self._orthogonality_error, float(error))

    def _announce_components(self) -> None:
        for name in self._target.manifolds:
            n, p = self._target.initial_params[name].shape[-2:]
            if n == p:
                warnings.warn(
                    f"Site '{name}' is square ({n}×{p}): a continuous path never changes the sign of its determinant, "
                    "so the draws follow the posterior given the sign of the start; run chains from both signs.",
                    stacklevel=4,
                )

    # ---- construction ---------------------------------------------------------------------------------------

    def _build_target(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        if self.potential_fn is not None:
            return target_from_potential(
                self.potential_fn, self._initial_params, self._manifolds, self._site_transforms
            )
        assert self.model is not None
        return target_from_model(
            self.model,
            args,
            kwargs,
            transforms=self._site_transforms,
            max_plate_nesting=self._max_plate_nesting,
            init_strategy=self._init_strategy,
            initial_params=self._initial_params,
        )

    def _build_potential(self) -> BatchedPotential:
        return BatchedPotential(
            self._target.potential_fn,
            self._target.initial_params,
            jit_compile=self._jit_compile,
            compile_options=self._jit_options,
            warn=not self._ignore_jit_warnings,
        )

    def _mechanics_on(self, name: str, manifold: Manifold) -> Mechanics:
        for kind, mechanics in self.manifold_mechanics.items():
            if isinstance(manifold, kind):
                return mechanics
        known = sorted(kind.__name__ for kind in self.manifold_mechanics)
        raise ValueError(
            f"Site '{name}': {type(self).__name__} moves on {known}, not on {manifold!r}; "
            "give the site a chart through transforms."
        )

    def __getstate__(self) -> dict[str, Any]:
        # A compiled graph cannot be pickled; it is rebuilt from the target on first use.
        return {**self.__dict__, "_potential": None}


def _check_positive(**arguments: float | None) -> None:
    for name, value in arguments.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}, expected a positive number.")
