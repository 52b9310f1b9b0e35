"""Stochastic-gradient Hamiltonian Monte Carlo whose dynamics were learned on other posteriors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.hmc.kernel import block_mechanics
from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics
from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.sgmcmc.meta.opening import Opening
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import Derivatives, MetaSampler, Scaling, check_derivatives
from pyro_manifold.infer.mcmc.sgmcmc.meta.step import first_squares, learned_step
from pyro_manifold.infer.mcmc.sgmcmc.osghmc import OSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import Step
from pyro_manifold.target.loader import cases_of
from pyro_manifold.target.model import ModelTarget, Target


class NNSGHMC(OSGHMC):
    r"""`SGHMC` with a speed and a friction of each coordinate that small networks choose, step by step.

    .. math::
        d\theta = (Q r - \partial_r Q)\,dt, \qquad
        dr = (-Q\nabla U - D r + \partial_U Q\,\nabla U + \partial_r D)\,dt + \sqrt{2D}\,dW,

    Q and D functions of the energy U, of the coordinate's momentum and, D, of its gradient, the same for all
    coordinates; a `MetaSampler` holds them. The terms with ∂ keep the posterior stationary whatever the networks are,
    up to the step size and the noise of the gradient: training, by `train_meta_sampler` on other posteriors, decides
    how fast it draws and not what from. One step costs one gradient, as in SGHMC, and two small networks for each
    coordinate.

    Orthonormal matrices and unit vectors move as in `OSGHMC`, by Euler's scheme, while all other sites follow the
    learned dynamics.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        sampler: the learned sampler, a file of one, or the name of one that comes with the package
            (`MetaSampler.names`).
        step_size: ε, a number or a function of the number of the step; `MetaSampler.step_size_for` has that of
            training, for the number of data. Friction was learned for that: four times as long a step can lose more
            than all of its momentum, of which there is a warning.
        friction: α of a step, of manifold sites only.
        noise_estimate: β̂ as in `SGHMC`, below ``friction``; where it exceeds the learned friction, no noise is added.
        resample_momentum: whether each iteration begins with fresh momenta.
        data_size: how many data the posterior has, to rescale energies; None for the elements of the largest plate that
            subsamples, those of the loader's data set, or else 1. A sampler that was trained without data does not ask.
        derivatives: of the networks: ``"exact"``, or ``"finite differences"``.
        **options: as in `StochasticGradientKernel`.

    Raises:
        ValueError: for an argument out of range, or a file that holds no such sampler.

    Source: Gong, Li & Hernández-Lobato, Meta-learning for stochastic gradient MCMC, ICLR 2019, arXiv 1806.04522.

    Example:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> def model():
        ...     pyro.sample("x", dist.Normal(torch.zeros(20), torch.linspace(0.5, 1.5, 20)).to_event(1))
        >>> kernel = NNSGHMC(model, sampler="gaussian", step_size=0.02, num_steps=10)
        >>> mcmc = MCMC(kernel, 100, 50, num_chains=16, disable_progbar=True)
        >>> mcmc.run()
        >>> bool((mcmc.get_samples()["x"].std(0)[-1] - 1.5).abs() < 0.2)
        True
    """

    steps_can_be_native: ClassVar[bool] = False
    """What is learnt is native code of its own."""

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
        **options: Any,
    ) -> None:
        if "integrator" in options:
            raise ValueError("integrator: NNSGHMC has a step of its own; leave it out.")
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
        self._sampler, self._sampler_fingerprint = sampler, sampler.fingerprint
        self._data_size: int | None = data_size
        self._derivatives: Derivatives = derivatives

    def _configuration(self) -> dict[str, str]:
        """The sampler by its fingerprint alone."""
        plain = copy(self)
        del plain._sampler
        return super(NNSGHMC, plain)._configuration()

    def step(self) -> Step:
        return learned_step

    def step_on(self, problem: Problem) -> Step:
        """With the sampler in the dtype and on the device of the posterior, and its inputs scaled for that."""
        like = next(iter(problem.initial_values.values()))
        scaling = self.scaling_of(problem)
        self._check_step_size(scaling.data_size)
        opening = Opening(self._sampler.to(like), scaling)
        for block, move in block_mechanics(problem, self.manifold_mechanics).items():
            if isinstance(move, EuclideanMechanics):
                opening.compile(problem.position[block], warn=self._warn)
        return partial(self.step(), opening=opening)

    def _check_step_size(self, data_size: int) -> None:
        """Say so if the strongest friction that the sampler can choose would take the momentum twice."""
        first, own = value_at("step_size", self._step_size, 0), self._sampler.step_size_for(data_size)
        longest = 2 * own / (0.5 + self._sampler.constant_friction)
        if self._warn and first > longest:
            warnings.warn(
                f"step_size={first:.3g} is {first / own:.1f} times the {own:.3g} for which the sampler learned its "
                f"friction: chains can run away, take at most {longest:.3g}.",
                stacklevel=2,
            )

    def scaling_of(self, problem: Problem) -> Scaling:
        """What the sampler has to know of a posterior."""
        dimension = sum(value[0].numel() for value in problem.initial_values.values())
        size = _data_size(problem.target) if self._data_size is None else self._data_size
        return Scaling(dimension, size, self._derivatives)

    def motion_of(self, problem: Problem) -> tuple[BlockMechanics, Metrics]:
        """How each block moves, and its masses."""
        return block_mechanics(problem, self.manifold_mechanics), self._metrics(problem)

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        return state._replace(squares=first_squares(state.gradient, *self.motion_of(problem)))


def _data_size(target: Target) -> int:
    """How many data a model has, as far as its plates that subsample or its loader tell."""
    if not isinstance(target, ModelTarget) or target.minibatch_of is None:
        return 1
    if target.loader is None:
        return max((size for size, _ in target.minibatch_of({}).plates.values()), default=1)
    return cases_of(target.loader) or 1  # none known: a list of batches, or a stream
