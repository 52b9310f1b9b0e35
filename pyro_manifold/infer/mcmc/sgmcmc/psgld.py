"""Stochastic-gradient Langevin dynamics with an adaptive diagonal preconditioner (pSGLD)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.checks import check_positive, check_share
from pyro_manifold.infer.mcmc.mechanics import (
    EuclideanMechanics,
    Mechanics,
    Metric,
    Metrics,
    ProductMechanics,
    block_mechanics,
)
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.sgld import SGLD, langevin_step
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import StepSchedules
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential, Problem

_PROBES = 8
"""Number of probes for initial second moments; with fewer, some of many coordinates could be near zero by chance."""


def preconditioned_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
    decay: float,
    damping: float,
) -> StochasticState:
    r"""Take a `langevin_step` with inverse masses $1 / (\lambda + \sqrt v)$, v a mean of squared gradients.

    A manifold site has one mass, from the mean of squares of its entries, since separate masses would not respect its
    geometry.

    Source: Li, Chen, Carlson & Carin, AAAI 2016, algorithm 1, without the Γ of its equation 5.
    """
    squares = {
        block: decay * v + (1 - decay) * squared(state.gradient[block], v.dim() == 1)
        for block, v in state.memory.items()
    }
    masses = {block: Metric.from_inverse_mass(1 / (damping + v.sqrt())) for block, v in squares.items()}
    moved = langevin_step(state, settings, noise, potential, mechanics=mechanics, metrics=masses)
    return moved._replace(memory=squares)


def squared(gradient: Tensor, together: bool) -> Tensor:
    """Square each entry of a gradient; for a single mass, return the mean of the squares, ``(chains,)``."""
    return gradient.square().flatten(1).mean(1) if together else gradient.square()


class PSGLD(SGLD):
    r"""Preconditioned `SGLD`, with a scale for each coordinate from a running mean v of squared gradients.

    $$
    M^{-1} = 1/(\lambda + \sqrt v), \qquad
    \theta \leftarrow \theta - \tfrac\varepsilon2 M^{-1} \nabla U + N(0, \varepsilon\tau M^{-1}), \qquad
    v \leftarrow \rho v + (1 - \rho) (\nabla U)^2.
    $$

    Because M depends on past positions, an exact step would include a correction Γ of the drift, the divergence of M⁻¹;
    it is omitted, as usual. The effect is small if v hardly depends on the position: if it is dominated by minibatch
    noise, or if its memory of 1/(1 - ρ) steps is long compared with the autocorrelation time of the chain. If the two
    times are equal, draws from a Gaussian without gradient noise have a standard deviation that is 15 % too large. A
    manifold site has one mass for all of its entries.

    v is initialised with an estimate of its stationary value: the mean of squared gradients of several minibatches at
    the start of the chain, plus τ times the curvature there. The curvature follows from integration by parts,
    $\mathbb E (\partial_i U)^2 = \tau\,\mathbb E\,\partial_i^2 U$; minibatches add the variance of their
    gradient. From the gradient alone, a chain that starts at a mode would have v = 0, and a first step of
    $\sqrt{\varepsilon/\lambda}$.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the step number.
        decay: ρ.
        damping: λ.
        **options: as in `StochasticGradientKernel`.

    Raises:
        ValueError: for an argument out of range, and for ``scales``, which v replaces.

    Source: Li, Chen, Carlson & Carin, AAAI 2016, algorithm 1.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> y = torch.randn(1000) + 2
        >>> def model():
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", 1000, subsample_size=50) as rows:
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
        >>> mcmc = MCMC(PSGLD(model, step_size=0.05, num_steps=20), 200, 50, num_chains=4, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["mean"].shape
        torch.Size([4, 200])
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
            raise ValueError(
                "scales is not supported by PSGLD, which adapts a scale for each coordinate: leave it out, or use SGLD."
            )
        super().__init__(model, potential_fn, step_size=step_size, **options)
        check_share(open_above=True, decay=decay)
        check_positive(damping=damping)
        self._decay, self._damping = decay, damping

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        mechanics = block_mechanics(problem, self.manifold_mechanics)
        temperature = (
            value_at("temperature", self._temperature, 0) or 1.0
        )  # temperature 0 has no noise, whose scale matters
        return state._replace(
            memory=stationary_squares(state.position, problem.at_step, mechanics, temperature, problem.random)
        )

    def plan(self) -> StepSchedules:
        return replace(super().plan(), unit_masses=False)

    def step(self) -> Step:
        return partial(preconditioned_step, decay=self._decay, damping=self._damping)


def stationary_squares(
    position: Blocks,
    at_step: Callable[[int], Potential],
    mechanics: ProductMechanics,
    temperature: float,
    random: torch.Generator,
) -> Blocks:
    r"""Estimate E (∂ᵢU)² under the stationary distribution, from gradients near a single position.

    For the full gradient $\mathbb E(\partial_i U)^2 = \tau\,\mathbb E\,\partial_i^2 U$ by integration by parts; a
    minibatch adds the variance of its gradient. For each of several minibatches the gradient is evaluated at the
    position, g, and at a small distance z from it, g'. The mean of g² contains the noise. $\|H_i\|$, the root
    mean square of (g' - g)ᵢ for standard normal z, is an upper bound of the curvature $|H_{ii}|$, and equal to it
    if coordinates are independent. The sum $\overline{g^2} + \tau\|H_i\|$ is therefore conservative: a first step
    that is too short is corrected as v adapts, while one that is too long leaves the typical set.

    Args:
        position: positions of all chains.
        at_step: function from a step number to the density on the batch of that step.
        mechanics: mechanics of each block.
        temperature: τ > 0.
        random: random number generator for z.

    Returns:
        ``(chains, d)`` for blocks of unconstrained sites; ``(chains,)``, the mean over entries, for manifold sites.
    """
    together = {block: not isinstance(move, EuclideanMechanics) for block, move in mechanics.items()}
    noise: Blocks = {}
    curvature: Blocks = {}
    for number in range(_PROBES):
        near, distance = {}, {}
        for block, move in mechanics.items():
            near[block], distance[block] = _near(move, position[block], random)
        density = at_step(number)
        (_, here), (_, there) = density(position), density(near)
        for block, one in together.items():
            change = squared(there[block] - here[block], one)
            slope = change / distance[block].square().reshape(-1, *[1] * (change.dim() - 1))
            finite = torch.where(slope.isfinite(), slope, 0.0)  # the density may be infinite at the perturbed position
            noise[block] = noise.get(block, 0) + squared(here[block], one) / _PROBES
            curvature[block] = curvature.get(block, 0) + finite / _PROBES
    return {block: noise[block] + temperature * curvature[block].sqrt() for block in mechanics}


def _near(move: Mechanics, x: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Move each chain by a small distance in a random direction; return the points and the scale, ``(chains,)``."""
    largest = x.abs().flatten(1).amax(1) if x[0].numel() else x.new_zeros(len(x))
    distance = torch.finfo(x.dtype).eps ** 0.5 * largest.clamp(min=1)
    unit = Metric.from_inverse_mass(x.new_ones(1))
    return move.drift(x, move.draw_momentum(x, unit, random), unit, distance)[0], distance
