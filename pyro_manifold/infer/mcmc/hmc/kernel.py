"""Base class of Hamiltonian Monte Carlo kernels; the motion of each site is defined by its `Mechanics`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.density import CentredTarget, ModelTarget, Sites, Target, centred
from pyro_manifold.infer.mcmc.adaptation import (
    AdaptationSettings,
    Centring,
    Masses,
    WarmUp,
    estimators,
    may_have_directions,
    nearer_starts,
    windows,
)
from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, check_share
from pyro_manifold.infer.mcmc.hmc.centred_run import CentredRun
from pyro_manifold.infer.mcmc.hmc.reflection import ReflectedTrajectory, reflections
from pyro_manifold.infer.mcmc.hmc.warm_start import Tuning, as_tuning
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.mechanics import (
    HamiltonianSettings,
    LowRankMechanics,
    Mechanics,
    Metrics,
    ProductMechanics,
    State,
    Trajectory,
    at_rest,
    block_mechanics,
)
from pyro_manifold.infer.mcmc.running import Run
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    Composition,
    Executable,
    Problem,
    composition_of,
    coordinates,
)
from pyro_manifold.infer.mcmc.transitions import Tuning as TuningOf
from pyro_manifold.manifolds import Manifold, Stiefel
from pyro_manifold.store import fingerprint


class HamiltonianTuning(TuningOf[State, HamiltonianSettings], Protocol):
    """Protocol of the adaptation of step sizes, masses and trajectory lengths."""

    @property
    def example(self) -> HamiltonianSettings:
        """Settings of a typical iteration."""

    def learn_cost(self, fixed_cost: float) -> None:
        """Set the fixed cost of an iteration, in leapfrog steps."""


HamiltonianTransition = Executable[State, HamiltonianSettings]
"""Trajectory in its fastest available form (eager, compiled or native code)."""

TunedBy = Callable[[State, ProductMechanics, HamiltonianTransition], HamiltonianTuning]
"""Factory of the adaptation, for chains with an initial state, mechanics and a trajectory."""

_NO_ADAPTER = (
    "{name} has no mass_matrix_adapter, since it adapts masses itself: pass full_mass=[('a', 'b')] for dense "
    "blocks, and inverse_mass_matrix for initial masses."
)
_MOST_COLUMNS = 8  # limit, because a drift is a sequence of 2p flows


class HamiltonianKernel(Kernel):
    """Base class of Hamiltonian Monte Carlo kernels; arguments are those of `OHMC`.

    A subclass defines in ``manifold_mechanics`` the mechanics of sites on each kind of manifold.
    """

    manifold_mechanics: ClassVar[dict[type[Manifold], Mechanics]] = {}
    with_column_masses: ClassVar[dict[type[Mechanics], Mechanics]] = {}
    """Replacement for each mechanics class if each column has its own mass."""

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        step_size: float | None = 1,
        trajectory_length: float | None = None,
        num_steps: int | None = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        full_mass: bool | list[Block] | Literal["low rank"] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: dict[str, Any] | None = None,
        ignore_jit_warnings: bool = False,
        target_accept_prob: float = 0.9,
        init_strategy: Callable[..., Any] = init_to_uniform,
        *,
        manifolds: Mapping[str, Manifold | Constraint] | None = None,
        trajectory_jitter: float = 0.3,
        reflection_probability: float = 0.5,
        persistence: float = 0.0,
        adapt_centring: bool = True,
        column_masses: bool | None = None,
        min_stepsize: float = 1e-10,
        max_stepsize: float = 1e10,
        inverse_mass_matrix: Mapping[Block | str, Tensor | float] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            transforms=transforms,
            max_plate_nesting=max_plate_nesting,
            init_strategy=init_strategy,
            manifolds=manifolds,
            ignore_jit_warnings=ignore_jit_warnings,
        )
        step_size = 1 if step_size is None else step_size
        check_positive(step_size=step_size)
        self._tuned = as_tuning(step_size, inverse_mass_matrix, tuning)
        self._inverse_masses = fingerprint(self._tuned and self._tuned.numbers())  # identifies the configuration
        if trajectory_length is not None:
            check_positive(trajectory_length=trajectory_length)
        if num_steps is not None:
            check_positive_integer(num_steps=num_steps)
        check_positive(min_stepsize=min_stepsize, max_stepsize=max_stepsize, target_accept_prob=target_accept_prob)
        if not 0 < min_stepsize <= max_stepsize:
            raise ValueError(f"min_stepsize={min_stepsize}, max_stepsize={max_stepsize}, expected 0 < min ≤ max.")
        if not 0 < target_accept_prob < 1:
            raise ValueError(f"target_accept_prob={target_accept_prob}, expected a number between 0 and 1.")
        check_share(reflection_probability=reflection_probability, open_above=False)
        check_share(trajectory_jitter=trajectory_jitter, persistence=persistence, open_above=True)
        self._plan = AdaptationSettings(
            float(step_size if self._tuned is None else self._tuned.step_size),
            None if trajectory_length is None else float(trajectory_length),
            None if num_steps is None else int(num_steps),
            float(trajectory_jitter),
            bool(adapt_step_size),
            bool(adapt_mass_matrix),
            float(target_accept_prob),
            (float(min_stepsize), float(max_stepsize)),
            float(persistence),
            None if self._tuned is None else self._tuned.trajectory_length,
            self._tuned is not None,
            bool(adapt_centring),
        )
        if column_masses and not self.with_column_masses:
            raise ValueError(
                f"column_masses={column_masses}: {type(self).__name__} supports only one mass for each site: leave "
                "it out, or use OHMC."
            )
        self._column_masses = "auto" if column_masses is None else bool(column_masses)
        self._full_mass = full_mass
        self._reflection_probability = reflection_probability
        self._jit_compile = jit_compile
        self._jit_options = jit_options

    def grouping(self) -> bool | list[Block]:
        return False if self._full_mass in (None, "low rank") else self._full_mass  # type: ignore[return-value]

    def initialised(self, problem: Problem, warmup_steps: int) -> Problem:
        """Replace random initial values far from the typical set by `nearer_starts`."""
        adapts = self._plan.adapt_step_size and self._plan.adapt_mass_matrix and len(windows(warmup_steps)) > 1
        if not (adapts and problem.drawn and self._options.init_strategy is init_to_uniform):
            return problem
        where = problem.position, problem.potential, problem.manifolds
        return problem.at(nearer_starts(*where, problem.other_starts, problem.random))

    def compose(self, problem: Problem, warmup_steps: int) -> Composition[State, HamiltonianSettings]:
        """Return the transition of a run: a reflection of a square site, if there is one, then a trajectory."""

        def warm_up(state: State, mechanics: ProductMechanics, trajectory: HamiltonianTransition) -> WarmUp:
            acceptance = partial(_acceptance_of_one_step, trajectory)
            schedule = self._plan.windows(warmup_steps) if self._plan.adapt_mass_matrix else []
            masses = self._masses(problem, mechanics, schedule)
            functionals = problem.functionals(problem) if self._plan.tries_lengths(warmup_steps) else coordinates
            centring = None
            if isinstance(problem.target, CentredTarget) and self._plan.centres(warmup_steps):
                centring = Centring(problem.target, problem.layout, problem.potential, schedule)
            return WarmUp(self._plan, warmup_steps, state, masses, acceptance, problem.random, functionals, centring)

        return self.composed(problem, self.mechanics(problem), warm_up)

    def run_of(self, target: Target, chains: int, warmup_steps: int, initial_params: Sites | None) -> Run[Any, Any]:
        """Create a run, in coordinates that warm-up may centre."""
        first = {} if self._tuned is None else self._tuned.centredness
        if isinstance(target, ModelTarget) and (self._plan.centres(warmup_steps) or first):
            target = centred(target, first) or target
        return super().run_of(target, chains, warmup_steps, initial_params)

    def kind_of_run(self, target: Target) -> type[Run[Any, Any]]:
        return CentredRun if isinstance(target, CentredTarget) else Run

    def _masses(self, problem: Problem, mechanics: ProductMechanics, schedule: list[range]) -> Masses:
        make = estimators(problem, mechanics, self._full_mass == "low rank")
        return Masses(make, None if self._tuned is None else self._tuned.inverse_masses(make), schedule)

    def with_masses_of_sites(self) -> Self:
        """Return a copy of the kernel with one mass for each site on a manifold and diagonal masses for other sites."""
        other = copy(self)
        other._column_masses, other._full_mass = False, False
        return other

    @property
    def compiles_density(self) -> bool:
        """True unless steps are compiled by torch, which includes the density of all chains."""
        return not self._jit_compile

    @property
    def plan(self) -> AdaptationSettings:
        """User settings of step size, masses and trajectory lengths."""
        return self._plan

    def composed(
        self, problem: Problem, mechanics: ProductMechanics, tuned_by: TunedBy
    ) -> Composition[State, HamiltonianSettings]:
        """Compose a run as in `compose`, with the given mechanics and adaptation."""
        transition, state = Trajectory(mechanics), at_rest(problem.position, problem.potential)
        earlier = reflections(problem, self._reflection_probability)
        trajectory: HamiltonianTransition = Executable(
            ReflectedTrajectory(transition, earlier) if earlier else transition, problem.density
        )
        tuning = tuned_by(state, mechanics, trajectory)
        return composition_of(
            problem,
            trajectory,
            tuning,
            state,
            example=lambda: tuning.example,
            learn_cost=tuning.learn_cost,
            compile_options=self._jit_options or {} if self._jit_compile else None,
            warn=self._warn,
        )

    def mechanics(self, problem: Problem) -> ProductMechanics:
        """Return the mechanics of each block."""
        mechanics = block_mechanics(problem, self.manifold_mechanics)
        most = {False: 0, True: math.inf, "auto": _MOST_COLUMNS}[self._column_masses]
        for block, manifold in problem.manifolds.items():
            *_, n, p = 1, *problem.position[block].shape
            if isinstance(manifold, Stiefel) and 1 < p < n and p <= most:
                mechanics[block] = self.with_column_masses.get(type(mechanics[block]), mechanics[block])
        for block in set(problem.layout.groups) - problem.layout.dense:
            if self._may_have_directions and may_have_directions(problem.position[block]):
                mechanics[block] = LowRankMechanics()
        return mechanics

    @property
    def _may_have_directions(self) -> bool:
        """Return whether directions across unconstrained sites may be used, found by warm-up or by an earlier run."""
        return bool(self.with_column_masses) and self._full_mass is not False and not self._jit_compile

    # ---- results of warm-up -------------------------------------------------------------------------------------

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self._tuning.trajectory_length

    @property
    def step_size(self) -> float:
        """Current ε, at most the trajectory length."""
        return self._tuning.step_size

    @property
    def num_steps(self) -> int:
        """Number of leapfrog steps of a trajectory of mean length."""
        return self._tuning.num_steps

    @property
    def inverse_mass_matrix(self) -> Blocks:
        r"""Inverse mass of each block: a vector or matrix for a group of sites, and for a manifold site a scalar.

        With directions across the sites of a group it is ``(1 + k, 1 + size)``: a row (1, D), and a row $(\lambda, w)$
        for each direction, for $D^{1/2} (I + \sum \lambda w w^\top) D^{1/2}$. With masses of
        columns it is ``(chains, matrices * (p + 1))``: for each matrix, p columns and the rotations within their span.
        """
        return self._tuning.masses.inverse_mass_matrix

    @property
    def centredness(self) -> Sites:
        """Centredness c of each element of sites that moved in other coordinates than written; see `CentredTarget`."""
        run = self.run
        return run.centredness if isinstance(run, CentredRun) else {}

    @property
    def mass_matrix_adapter(self) -> NoReturn:
        """Pyro's attribute for custom mass matrices, which is not supported here.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(_NO_ADAPTER.format(name=type(self).__name__))

    @mass_matrix_adapter.setter
    def mass_matrix_adapter(self, adapter: object) -> None:
        raise AttributeError(_NO_ADAPTER.format(name=type(self).__name__))

    @property
    def tuning(self) -> Tuning:
        """Step size, masses and trajectory length, for `OHMC(..., tuning=...)`."""
        return Tuning(self.step_size, self.inverse_mass_matrix, self.trajectory_length, self.centredness)

    @property
    def _tuning(self) -> WarmUp:
        tuning: Any = self.run.tuning  # set by `compose`
        return tuning


def _acceptance_of_one_step(
    trajectory: HamiltonianTransition, state: State, step_size: float, metrics: Metrics, random: torch.Generator
) -> float:
    _, statistics = trajectory(state, HamiltonianSettings(step_size, 1, metrics), random)
    return float(statistics["acceptance_rate"].mean())
