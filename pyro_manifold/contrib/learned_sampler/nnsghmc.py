"""Stochastic-gradient Hamiltonian Monte Carlo with dynamics learned on other posteriors (meta-learning)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler.coordinate_update import CoordinateUpdate
from pyro_manifold.contrib.learned_sampler.energy import EnergyInput
from pyro_manifold.contrib.learned_sampler.guard import Guard, GuardedSteps, Record
from pyro_manifold.contrib.learned_sampler.sampler import Derivatives, MetaSampler, Scaling, check_derivatives
from pyro_manifold.contrib.learned_sampler.step import first_squares, learned_step
from pyro_manifold.density import Batches, ModelTarget, Target, number_of_examples, prior_density
from pyro_manifold.infer.mcmc import check_positive_integer
from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics, Metrics, ProductMechanics, block_mechanics
from pyro_manifold.infer.mcmc.sgmcmc import (
    OSGHMC,
    BatchAdaptation,
    Schedule,
    SiteMasses,
    Step,
    StepSchedules,
    StochasticState,
    StochasticSteps,
    value_at,
)
from pyro_manifold.infer.mcmc.transitions import Blocks, CompiledPart, Problem


class NNSGHMC(OSGHMC):
    r"""Stochastic-gradient HMC with speed and friction of each coordinate given by small neural networks.

    $$
    d\theta = (Q r - \partial_r Q)\,dt, \qquad
    dr = (-Q\nabla U - D r + \partial_U Q\,\nabla U + \partial_r D)\,dt + \sqrt{2D}\,dW,
    $$

    Q and D are functions of the energy U, of the coordinate's momentum and, for D, of its gradient. They are the same
    for all coordinates and are contained in a `MetaSampler`. Due to the terms with ∂ the posterior is the stationary
    distribution for any networks, up to effects of step size and gradient noise. Training, by `train_meta_sampler` on
    other posteriors, affects the speed of mixing but not the stationary distribution. One step costs one gradient, as
    in SGHMC, and two evaluations of small networks per coordinate.

    Orthonormal matrices and unit vectors move as in `OSGHMC` with Euler's scheme; all other sites follow the learned
    dynamics.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        sampler: a learned sampler, its file, or the name of one that is part of the package (`MetaSampler.names`).
        step_size: ε, a number or a function of the step number; `MetaSampler.step_size_for` returns that of training,
            for the number of data. Friction was learned for that step size: with four times its size, friction can
            exceed the whole momentum in one step; a warning is then issued.
        friction: α per step, for manifold sites only.
        noise_estimate: β̂ as in `SGHMC`, below ``friction``; where it exceeds the learned friction, no noise is added.
        resample_momentum: whether momenta are fully refreshed before each iteration.
        data_size: number of data of the posterior, for rescaling energies; None for the size of the largest subsampled
            plate, that of the loader's data set, or else 1. Not used by a sampler that was trained without data.
        derivatives: computation of the networks' derivatives, ``"exact"`` or ``"finite differences"``.
        guard: whether to watch temperature and energy. Chains whose momenta are far too hot over 200 steps and do not
            cool, while the energy is not below its lowest level so far, have left the posterior. In warm-up they return
            to where their energy was lowest, and all steps are halved from then on, with a warning. After warm-up the
            run ends with `LeftPosteriorError`; MCMC keeps the draws so far.
        **options: as in `StochasticGradientKernel`.

    Raises:
        ValueError: for an argument out of range, or a file that does not contain a `MetaSampler`.

    ``get_extra_fields()`` contains ``mean_lp``, the mean log density over the steps of an iteration, each on its own
    batch, which the guard uses.

    Source: Gong, Li & Hernández-Lobato, Meta-learning for stochastic gradient MCMC, ICLR 2019, arXiv 1806.04522.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> def model():
        ...     pyro.sample("x", dist.Normal(torch.zeros(20), torch.linspace(0.5, 1.5, 20)).to_event(1))
        >>> kernel = NNSGHMC(model, sampler="gaussian", step_size=0.02, num_steps=5)
        >>> mcmc = MCMC(kernel, 20, 10, num_chains=16, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["x"].shape
        torch.Size([320, 20])
    """

    steps_can_be_native: ClassVar[bool] = False
    """Native code of the whole step is not used, since the learned part of a step has its own."""

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        sampler: MetaSampler | str | Path,
        step_size: float | Schedule,
        friction: float = 0.1,
        noise_estimate: float = 0.0,
        resample_momentum: bool = False,
        data_size: int | None = None,
        derivatives: Derivatives = "exact",
        guard: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(options.get("scales"), str):
            raise ValueError(
                "scales='adapt' is not supported by NNSGHMC, whose networks choose the speed of each coordinate: pass "
                "{site: scale}, or use OSGHMC."
            )
        if "integrator" in options:
            raise ValueError("integrator is not supported by NNSGHMC, which has its own step: leave it out.")
        super().__init__(
            model,
            potential_fn,
            step_size=step_size,
            friction=friction,
            noise_estimate=noise_estimate,
            resample_momentum=resample_momentum,
            integrator="euler",
            **options,
        )
        if isinstance(sampler, str | Path):
            sampler = MetaSampler.load(sampler)
        if not isinstance(sampler, MetaSampler):
            raise ValueError(f"sampler={sampler!r}, expected a MetaSampler, its file, or one of {MetaSampler.names()}.")
        if data_size is not None:
            check_positive_integer(data_size=data_size)
        check_derivatives(derivatives)
        if not isinstance(guard, bool):
            raise ValueError(f"guard={guard!r}, expected True or False.")
        self._guard = guard
        self._sampler, self._sampler_fingerprint = sampler, sampler.fingerprint
        self._data_size: int | None = data_size
        self._derivatives: Derivatives = derivatives

    def configuration(self) -> dict[str, str]:
        """Return the configuration, with the sampler represented by its fingerprint."""
        plain = copy(self)
        del plain._sampler
        return super(NNSGHMC, plain).configuration()

    def step(self) -> Step:
        return learned_step

    def plan(self) -> StepSchedules:
        """Return the plan with unit momentum variance, since each coordinate has its own friction."""
        return replace(super().plan(), momentum_variance=1.0)

    def step_on(self, problem: Problem) -> Step:
        """Return the step for a problem, with the sampler's dtype, device and input scaling set accordingly."""
        like = next(iter(problem.initial_values.values()))
        scaling = self.scaling_of(problem)
        self._check_step_size(scaling.data_size)
        coordinate_update = CoordinateUpdate(self._sampler.to(like), scaling)
        for block, move in block_mechanics(problem, self.manifold_mechanics).items():
            if isinstance(move, EuclideanMechanics):
                coordinate_update.compile(problem.position[block], warn=self._warn)
        return partial(
            self.step(), coordinate_update=coordinate_update, energy_input=self._energy_input(problem, scaling)
        )

    def _energy_input(self, problem: Problem, scaling: Scaling) -> EnergyInput:
        """Return the energy in units of training; the prior is evaluated by itself only if that makes a difference."""
        sampler, target = self._sampler, problem.target
        of_data, of_prior = sampler.ratios(scaling)
        alike = of_data == of_prior or sampler.data_size == 1 or not sampler.sees_energy
        if alike or not isinstance(target, ModelTarget):
            return EnergyInput(of_data, of_prior)
        batch = problem.batched.batches(0)
        if self._own_minibatches:
            batch = {name: value[0] for name, value in batch.items()}
        density = prior_density(target, problem.initial_values, batch, self._warn)

        def prior(position: Blocks) -> tuple[Tensor, Blocks]:
            energy, slopes = density(problem.layout.unpack(position))
            return energy, problem.layout.pack(slopes)

        return EnergyInput(of_data, of_prior, prior)

    def _check_step_size(self, data_size: int) -> None:
        """Warn if the largest friction that the sampler can choose would remove twice the momentum in one step."""
        first, own = value_at("step_size", self._step_size, 0), self._sampler.step_size_for(data_size)
        longest = 2 * own / (0.5 + self._sampler.constant_friction)
        if self._warn and first > longest:
            warnings.warn(
                f"step_size={first:.3g} is {first / own:.1f} times the step size {own:.3g} of training, for which "
                f"friction was learned: chains may diverge, choose at most {longest:.3g}.",
                stacklevel=2,
            )

    def scaling_of(self, problem: Problem) -> Scaling:
        """Return the properties of a posterior from which the sampler's inputs are scaled."""
        dimension = sum(value[0].numel() for value in problem.initial_values.values())
        size = _data_size(problem.target) if self._data_size is None else self._data_size
        return Scaling(dimension, size, self._derivatives)

    def motion_of(self, problem: Problem) -> tuple[ProductMechanics, Metrics]:
        """Return the mechanics and masses of each block."""
        return block_mechanics(problem, self.manifold_mechanics), self._metrics(problem)

    def compiled_parts(self, step: Any) -> dict[str, CompiledPart]:
        """Return the native code of a step without its gradient."""
        coordinate_update: CoordinateUpdate = step.keywords["coordinate_update"]

        def difference(state: Any, settings: Any, random: torch.Generator, *, count: int) -> str | None:
            return coordinate_update.difference(count, random)

        return {
            f"coordinate update of {count} coordinates": CompiledPart(graph, partial(difference, count=count))
            for count, graph in coordinate_update.graphs.items()
        }

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        state = state._replace(memory=first_squares(state.gradient, *self.motion_of(problem)))
        return Record.begun(state.energy).into(state) if self._guard else state

    def steps_of(self, problem: Problem) -> Callable[..., StochasticSteps]:
        return partial(GuardedSteps, problem=problem, begin=self.begin) if self._guard else StochasticSteps

    def tuning(
        self, batches: Batches, warmup_steps: int, masses: SiteMasses | None, state: StochasticState
    ) -> BatchAdaptation:
        guard = {"guard": Guard(warmup_steps, state.position, self._warn)} if self._guard else {}
        return BatchAdaptation(batches, warmup_steps, masses, **guard)


def _data_size(target: Target) -> int:
    """Return the number of data of a model, by its plates that subsample or its loader; 1 if neither has it."""
    loader = getattr(target, "loader", None)
    if loader is None:
        return max((size for size, _ in target.on({}).plates.values()), default=1)
    return number_of_examples(loader) or 1  # not known for a list of batches or a stream
