"""The base of the kernels of Hamiltonian Monte Carlo; what moves each site is left to mechanics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, ClassVar, Protocol, Self

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.infer.mcmc import run as runs
from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, check_share
from pyro_manifold.infer.mcmc.haste import Haste
from pyro_manifold.infer.mcmc.hmc.descent import nearer_starts
from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics, State, at_rest
from pyro_manifold.infer.mcmc.hmc.masses import Masses, estimators
from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.infer.mcmc.hmc.reflection import Reflection
from pyro_manifold.infer.mcmc.hmc.step import Step
from pyro_manifold.infer.mcmc.hmc.step_size import windows
from pyro_manifold.infer.mcmc.hmc.trajectory import HamiltonianSettings, Trajectory
from pyro_manifold.infer.mcmc.hmc.warm_start import Tuning, as_tuning
from pyro_manifold.infer.mcmc.hmc.warmup import Plan, WarmUp
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.layout import refuse_manifold
from pyro_manifold.infer.mcmc.native import allowed as native_code_is_allowed
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.run import Parts
from pyro_manifold.infer.mcmc.states import Block, Blocks, Transition
from pyro_manifold.manifolds import Constant, Manifold, Stiefel
from pyro_manifold.store.fingerprint import fingerprint
from pyro_manifold.target.batched import Sites


class HamiltonianTuning(runs.Tuning[State, HamiltonianSettings], Protocol):
    """What chooses steps, masses and lengths of trajectories."""

    @property
    def example(self) -> HamiltonianSettings:
        """Settings as most iterations have them."""

    def learn_cost(self, fixed_cost: float) -> None:
        """An iteration costs as much as so many steps beside its steps."""


TunedBy = Callable[[State, BlockMechanics, Trajectory], HamiltonianTuning]
"""Makes the tuning of chains that begin at a state and move by such trajectories."""

_OPERATORS_OF_A_DRIFT = 30  # and a kick, about
_MOST_COLUMNS = 8  # a drift is a sequence of 2p flows


class HamiltonianKernel(Kernel):
    """Hamiltonian Monte Carlo over sites of all kinds; arguments are those of `OHMC`.

    A subclass says in ``manifold_mechanics`` how sites on each kind of manifold move.
    """

    manifold_mechanics: ClassVar[dict[type[Manifold], Mechanics]] = {}
    with_column_masses: ClassVar[dict[type[Mechanics], Mechanics]] = {}
    """The mechanics that takes the place of another where each column has a mass of its own."""

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
        target_accept_prob: float = 0.9,
        init_strategy: Callable[..., Any] = init_to_uniform,
        *,
        manifolds: Mapping[str, Manifold | Constraint] | None = None,
        trajectory_jitter: float = 0.3,
        reflection_probability: float = 0.5,
        persistence: float = 0.0,
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
        check_positive(step_size=step_size)
        self._tuned = as_tuning(step_size, inverse_mass_matrix, tuning)
        self._inverse_masses = fingerprint(self._tuned and self._tuned.inverse_mass_matrix)  # to know it again
        if trajectory_length is not None:
            check_positive(trajectory_length=trajectory_length)
        if num_steps is not None:
            check_positive_integer(num_steps=num_steps)
        if not 0 < min_stepsize <= max_stepsize:
            raise ValueError(f"min_stepsize={min_stepsize}, max_stepsize={max_stepsize}, expected 0 < min ≤ max.")
        if not 0 < target_accept_prob < 1:
            raise ValueError(f"target_accept_prob={target_accept_prob}, expected a number between 0 and 1.")
        check_share(reflection_probability=reflection_probability, open_above=False)
        check_share(trajectory_jitter=trajectory_jitter, persistence=persistence, open_above=True)
        self._plan = Plan(
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
        )
        if column_masses and not self.with_column_masses:
            raise ValueError(
                f"column_masses={column_masses}: {type(self).__name__} has one mass for each site; use OHMC."
            )
        self._column_masses = "auto" if column_masses is None else bool(column_masses)
        self._full_mass = full_mass
        self._reflection_probability = reflection_probability
        self._jit_compile = jit_compile
        self._jit_options = jit_options

    def grouping(self) -> bool | list[Block]:
        return self._full_mass

    def compose(self, problem: Problem, warmup_steps: int) -> Parts[State, HamiltonianSettings]:
        """Reflections of square sites, then a trajectory."""

        def warm_up(state: State, mechanics: BlockMechanics, trajectory: Trajectory) -> WarmUp:
            acceptance = partial(_acceptance_of_one_step, trajectory)
            masses = self._masses(problem, mechanics)
            return WarmUp(self._plan, warmup_steps, state, masses, acceptance, problem.random)

        return self.composed(problem, self.mechanics(problem), warm_up, self._start(problem, warmup_steps))

    def _masses(self, problem: Problem, mechanics: BlockMechanics) -> Masses:
        make = estimators(problem, mechanics)
        return Masses(make, None if self._tuned is None else self._tuned.inverse_masses(make))

    def with_masses_of_sites(self) -> Self:
        """The same kernel, but for one mass for each site on a manifold and diagonal masses of the others."""
        other = copy(self)
        other._column_masses, other._full_mass = False, False
        return other

    @property
    def plan(self) -> Plan:
        """What the user asked of step size, masses and lengths."""
        return self._plan

    def composed(
        self, problem: Problem, mechanics: BlockMechanics, tuned_by: TunedBy, start: Blocks | None = None
    ) -> Parts[State, HamiltonianSettings]:
        """As `compose`, with other mechanics, tuned in another way or from another start."""
        step = Step(problem.potential, mechanics)
        state = at_rest(problem.position if start is None else start, problem.potential)
        trajectory = Trajectory(step)
        if self._jit_compile:
            metrics = self._masses(problem, mechanics).metrics
            step.compile(state, metrics, problem.batched.graph, options=self._jit_options, warn=self._warn)
        tuning = tuned_by(state, mechanics, trajectory)
        transitions: list[Transition[State, HamiltonianSettings]] = [trajectory]
        square = self._square_blocks(problem)
        if square:
            transitions.insert(0, Reflection(square, problem.potential, self._reflection_probability))
        return Parts(
            state,
            transitions,
            tuning,
            partial(_moved, potential=problem.potential),
            {"step": step.graph, "trajectory": trajectory.native.graph},
            haste=self._haste(problem, trajectory, tuning),
        )

    def _start(self, problem: Problem, warmup_steps: int) -> Blocks:
        """Where chains begin: nearer than drawn, where they would creep and nobody said where to begin."""
        adapts = self._plan.adapt_step_size and self._plan.adapt_mass_matrix and len(windows(warmup_steps)) > 1
        if not (adapts and problem.drawn and self._init_strategy is init_to_uniform):
            return problem.position
        return nearer_starts(problem.position, problem.potential, problem.manifolds)

    def _haste(self, problem: Problem, trajectory: Trajectory, tuning: HamiltonianTuning) -> Haste:
        if self._jit_compile or problem.potential_of_one_chain is None:
            return Haste(None)
        return Haste(partial(self._compile, problem, trajectory, tuning), _OPERATORS_OF_A_DRIFT + problem.operators)

    def _compile(self, problem: Problem, trajectory: Trajectory, tuning: HamiltonianTuning, state: State) -> None:
        """Native code for trajectories, where there can be."""
        one = problem.potential_of_one_chain
        if one is None or state.energy.device.type != "cpu" or not native_code_is_allowed():
            return
        trajectory.compile(state, tuning.example, one, problem.batched.graph, warn=self._warn)
        tuning.learn_cost(trajectory.native.fixed_cost)

    def mechanics(self, problem: Problem) -> BlockMechanics:
        """How each block moves."""
        mechanics = dict(block_mechanics(problem, self.manifold_mechanics))
        most = {False: 0, True: math.inf, "auto": _MOST_COLUMNS}[self._column_masses]
        for block, manifold in problem.manifolds.items():
            *_, n, p = 1, *problem.position[block].shape
            if isinstance(manifold, Stiefel) and 1 < p < n and p <= most:
                mechanics[block] = self.with_column_masses.get(type(mechanics[block]), mechanics[block])
        return mechanics

    def _square_blocks(self, problem: Problem) -> list[Block]:
        """Sites on O(n), whose two components no continuous path connects."""
        blocks: list[Block] = [
            (name,)
            for name, manifold in problem.target.manifolds.items()
            if manifold.components(*problem.initial_values[name].shape[-manifold.event_dim :]) > 1
        ]
        if blocks and not self._reflection_probability:
            names = ", ".join(f"'{name}'" for (name,) in blocks)
            warnings.warn(
                f"Site {names} is square: a continuous path never changes the sign of its determinant, so with "
                "reflection_probability=0 the draws follow the posterior given the sign of the start.",
                stacklevel=4,
            )
            return []
        return blocks

    # ---- what warm-up has found ---------------------------------------------------------------------------------

    @property
    def trajectory_length(self) -> float:
        """Mean integration time of a trajectory."""
        return self._tuning.trajectory_length

    @property
    def step_size(self) -> float:
        """Current ε; never longer than a trajectory."""
        return self._tuning.step_size

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory of mean length."""
        return self._tuning.num_steps

    @property
    def inverse_mass_matrix(self) -> Blocks:
        """Inverse mass of each block: a vector or matrix for a group of sites, and for a manifold site a scalar.

        With masses of columns ``(chains, matrices * (p + 1))``: p columns of each matrix, and turns within their span.
        """
        return self._tuning.masses.inverse_mass_matrix

    @property
    def tuning(self) -> Tuning:
        """All of these, for `OHMC(..., tuning=...)`."""
        return Tuning(self.step_size, self.inverse_mass_matrix, self.trajectory_length)

    @property
    def _tuning(self) -> WarmUp:
        tuning: Any = self.run.tuning  # what `compose` gave it
        return tuning


def block_mechanics(problem: Problem, table: Mapping[type[Manifold], Mechanics]) -> BlockMechanics:
    """How each block moves.

    Raises:
        ValueError: if the table has no mechanics for the manifold of a site.
    """
    mechanics: dict[Block, Mechanics] = {group: EuclideanMechanics() for group in problem.layout.groups}
    for block, manifold in problem.manifolds.items():
        found = [move for kind, move in {**table, **_ANYWHERE}.items() if isinstance(manifold, kind)]
        if not found:
            refuse_manifold(block[0], manifold, [kind.__name__ for kind in table])
        mechanics[block] = found[0]
    return mechanics


_ANYWHERE: dict[type[Manifold], Mechanics] = {Constant: GeodesicMechanics(Constant())}


def _acceptance_of_one_step(
    trajectory: Trajectory, state: State, step_size: float, metrics: Metrics, random: torch.Generator
) -> float:
    _, statistics = trajectory(state, HamiltonianSettings(step_size, 1, metrics), random)
    return float(statistics["acceptance_rate"].mean())


def _moved(state: State, position: Blocks, *, potential: Any) -> State:
    energy, gradient = potential(position)
    return state._replace(position=position, energy=energy, gradient=gradient)
