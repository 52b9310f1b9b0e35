"""Stochastic-gradient Langevin dynamics with a running scale for each coordinate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyro_manifold.infer.mcmc.checks import check_positive, check_share
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule
from pyro_manifold.infer.mcmc.sgmcmc.sgld import SGLD
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState, preconditioned_step
from pyro_manifold.infer.mcmc.sgmcmc.transition import Plan, Step


class PSGLD(SGLD):
    r"""`SGLD` with a scale for each coordinate, from a running mean v of squared gradients.

    .. math:: M^{-1} = 1/(\lambda + \sqrt v), \qquad
        \theta \leftarrow \theta - \tfrac\varepsilon2 M^{-1} \nabla U + N(0, \varepsilon\tau M^{-1}), \qquad
        v \leftarrow \rho v + (1 - \rho) (\nabla U)^2.

    As M depends on where the chain has been, a correction Γ of the drift, the divergence of M⁻¹, belongs to the step;
    it is left out, as usual. That is harmless where v hardly depends on the position: where noise of minibatches is
    most of it, or its memory of 1/(1 - ρ) steps is long beside the time in which the chain forgets its place. Where
    the two times are equal, draws of a Gaussian without noise have a standard deviation 15 % too large. A manifold site
    has one mass for all of its entries.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the number of the step.
        decay: ρ.
        damping: λ.
        **options: as in `StochasticGradientKernel`.

    Source: Li, Chen, Carlson & Carin, AAAI 2016, algorithm 1.
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        step_size: float | Schedule,
        decay: float = 0.99,
        damping: float = 1e-5,
        **options: Any,
    ) -> None:
        if options.get("scales"):
            raise ValueError("scales: PSGLD learns a scale for each coordinate; leave it out, or take SGLD.")
        super().__init__(model, potential_fn, step_size=step_size, **options)
        check_share(open_above=True, decay=decay)
        check_positive(damping=damping)
        self._decay, self._damping = decay, damping

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        squares = {
            block: x.square().flatten(1).mean(1) if block in problem.manifolds else x.square()
            for block, x in state.gradient.items()
        }
        return state._replace(squares=squares)

    def plan(self) -> Plan:
        return replace(super().plan(), unit_masses=False)

    def step(self) -> Step:
        return partial(preconditioned_step, decay=self._decay, damping=self._damping)
