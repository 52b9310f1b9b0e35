"""Stochastic-gradient Hamiltonian Monte Carlo with a thermostat, which estimates the gradient noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_manifold.density import Order
from pyro_manifold.infer.mcmc.checks import check_positive
from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.osghmc import OSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import StepSchedules
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Potential, Problem, Statistics, per_chain
from pyro_manifold.manifolds import Manifold


def thermostat_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
    thermostat_mass: float | None,
) -> StochasticState:
    """Take one BADODAB step: half a kick, a drift and a thermostat update, friction and noise, and the halves reversed.

    The step is symmetric, so that its bias is of second order in ε. With a constant thermostat it is that of `SGHMC`.

    Source: Leimkuhler & Shang 2016 (BADODAB), with the drifts of `OSGHMC`.
    """
    half = settings.step_size / 2
    kicked = mechanics.kick(state.position, state.momentum, state.gradient, half)
    position, momentum = mechanics.drift(state.position, kicked, metrics, half)
    rate = _thermostat_rate(settings, thermostat_mass)
    thermostats = _warmed(state.memory, position, momentum, mechanics, metrics, settings.temperature, rate / 2)
    momentum = _slowed(thermostats, position, momentum, mechanics, metrics, settings, noise)
    thermostats = _warmed(thermostats, position, momentum, mechanics, metrics, settings.temperature, rate / 2)
    position, momentum = mechanics.drift(position, momentum, metrics, half)
    energy, gradient = potential(position)
    momentum = mechanics.kick(position, momentum, gradient, half)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=gradient, memory=thermostats)


def _thermostat_rate(settings: StepSettings, thermostat_mass: float | None) -> float:
    """Compute the change of ξ in a step per unit of 2K/d - τ; 0 at temperature 0, which has no equilibrium friction."""
    if not settings.temperature:
        return 0.0
    if thermostat_mass is None:
        return settings.friction**2 / (2 * settings.temperature)
    return settings.step_size**2 / thermostat_mass


def _warmed(
    thermostats: Blocks,
    position: Blocks,
    momentum: Blocks,
    mechanics: ProductMechanics,
    metrics: Metrics,
    temperature: float,
    rate: float,
) -> Blocks:
    """Update the thermostats by the temperatures of their blocks; blocks without degrees of freedom have none."""
    moved = dict(thermostats)
    for block, move in mechanics.items():
        degrees = move.degrees_of_freedom(position[block])
        if rate and degrees:
            energy = move.kinetic_energy(position[block], momentum[block], metrics[block])
            moved[block] = thermostats[block] + rate * (2 / degrees * energy - temperature)
    return moved


def _slowed(
    thermostats: Blocks,
    position: Blocks,
    momentum: Blocks,
    mechanics: ProductMechanics,
    metrics: Metrics,
    settings: StepSettings,
    noise: Blocks,
) -> Blocks:
    r"""Apply the friction and noise of a step to momenta: $e^{-\xi} r$ plus a fresh draw.

    The noise is that of the user's friction α, integrated over a step with decay ξ. Its variance at unit mass,
    $2\alpha\tau \int_0^1 e^{-2\xi s} ds$, is positive also for a negative ξ.
    """
    fresh = mechanics.momentum_from(noise, position, metrics)
    slowed = {}
    for block, r in momentum.items():
        ξ = thermostats[block]
        scale = (2 * settings.friction * settings.temperature * mean_decay(2 * ξ)).sqrt()
        slowed[block] = per_chain(torch.exp(-ξ), r) * r + per_chain(scale, r) * fresh[block]
    return slowed


def mean_decay(rate: Tensor) -> Tensor:
    r"""Compute $\int_0^1 e^{-xs} ds = (1 - e^{-x}) / x$ accurately also near 0, where it is 1."""
    x = torch.where(rate == 0, torch.finfo(rate.dtype).tiny, rate)
    return -torch.expm1(-x) / x


class SGNHT(StochasticGradientKernel):
    r"""Stochastic-gradient Nosé–Hoover thermostat: SGHMC with friction that adapts to the gradient noise.

    $$
    d\theta = v\,dt, \qquad dr = -\nabla U\,dt - \gamma r\,dt + \sqrt{2a\tau}\,dW, \qquad
    d\gamma = \frac1Q \Big(\frac{2K}d - \tau\Big) dt,
    $$

    for each block of sites, which is a site on a manifold, or all unconstrained sites jointly. Here r are momenta, v
    their velocities, d their degrees of freedom (np - p(p+1)/2 for an n×p orthonormal matrix), 2K = ⟨r, v⟩, and W has
    the covariance of the momenta; sites move as in `OSGHMC`. Over a step of size ε, aε = α is the friction set by the
    user, which determines the injected noise, and γε = ξ is the actual friction. ξ increases while the temperature of
    the momenta exceeds τ. Each chain has its own ξ. Up to effects of the step size, the stationary distribution is

    $$ e^{-(U + K)/\tau}\; N\Big(\xi;\; \alpha,\, \frac{\varepsilon^2\tau}{Q d}\Big). $$

    Gradient noise of variance σ² in each coordinate of unit mass, independent between steps, acts as if α were
    $\alpha + \varepsilon^2\sigma^2 / (2\tau)$, which is then the mean of ξ. The thermostat thus replaces the
    ``noise_estimate`` of `SGHMC`. It has one value for each block: if the noise is larger in one coordinate than in
    another, the former is too hot and the latter too cold. The same holds for noise of equal variance in all entries
    of an orthonormal matrix with several columns, which heats rotations among the columns twice as much as other
    motions.

    Minibatches are independent by default. Over an epoch of shuffled minibatches most of the noise cancels in
    positions, but not in the momenta that the thermostat measures: draws are then too narrow.

    Chains that move towards the typical set heat the thermostat, which cools slowly. Use initial values near the
    typical set, for example from `PSGLD` at temperature 0.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the step number, such as `CosineCycles`.
        friction: α > 0, the initial value of ξ: a step keeps the fraction $e^{-\xi}$ of the momentum.
        minibatches: order of minibatches, see `Batches`; a loader has its own.
        thermostat_mass: Q > 0, the inertia of ξ. None for $2\varepsilon^2\tau/\alpha^2$, with which ξ follows the
            temperature as fast as friction decorrelates momenta, and has standard deviation $\alpha/\sqrt{2d}$. The
            sources use 1, with which ξ adapts slowly for small ε, in about $\alpha/\varepsilon^2$ steps.
        resample_momentum: whether momenta are fully refreshed before each iteration.
        **options: as in `StochasticGradientKernel`. At temperature 0, ξ is constant.

    ``get_extra_fields()`` contains ``thermostat``, the mean of ξ over blocks weighted by their degrees of freedom; with
    several blocks, also ``thermostat of`` each block.

    Raises:
        ValueError: for an argument out of range, and if a schedule returns a negative value.

    Source: Ding, Fang, Babbush, Chen, Skeel & Neven, NIPS 2014; Leimkuhler & Shang, SIAM J. Sci. Comput. 38 (2016).

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> y = torch.randn(1000) + 2
        >>> def model():
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", 1000, subsample_size=50) as rows:
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
        >>> start = {"mean": y.mean().expand(4)}
        >>> kernel = SGNHT(model, step_size=0.002, num_steps=20)
        >>> mcmc = MCMC(kernel, 200, 50, num_chains=4, initial_params=start, disable_progbar=True)
        >>> mcmc.run()
        >>> bool((mcmc.get_samples()["mean"].mean() - y.mean()).abs() < 0.1)
        True
        >>> bool(mcmc.get_extra_fields()["thermostat"].mean() > 0.1)
        True
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = OSGHMC.manifold_mechanics

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        step_size: float | Schedule,
        friction: float = 0.1,
        minibatches: Order = "independent",
        thermostat_mass: float | None = None,
        resample_momentum: bool = False,
        **options: Any,
    ) -> None:
        if "noise_estimate" in options:
            raise ValueError(
                "noise_estimate is not supported by SGNHT, which estimates the noise itself: leave it out."
            )
        super().__init__(model, potential_fn, step_size=step_size, minibatches=minibatches, **options)
        check_positive(friction=friction)
        if thermostat_mass is not None:
            check_positive(thermostat_mass=thermostat_mass)
        self._friction, self._thermostat_mass = friction, thermostat_mass
        self._resample_momentum = resample_momentum

    def configuration(self) -> dict[str, str]:
        """Return the configuration, with the thermostat mass also if it is None."""
        return {**super().configuration(), "thermostat_mass": repr(self._thermostat_mass)}

    def begin(self, state: StochasticState, problem: Problem) -> StochasticState:
        return state._replace(
            memory={block: state.energy.new_full((len(x),), self._friction) for block, x in state.position.items()}
        )

    def step(self) -> Step:
        return partial(thermostat_step, thermostat_mass=self._thermostat_mass)

    def plan(self) -> StepSchedules:
        return StepSchedules(
            self._step_size,
            self._temperature,
            self._num_steps,
            self._friction,
            resample_momentum=self._resample_momentum,
            heating=1 / (4 * math.tanh(self._friction / 2)),
        )

    def statistics(self, state: StochasticState, mechanics: ProductMechanics) -> Statistics:
        found, total, all_degrees = {}, torch.zeros_like(state.energy), 0
        for block, move in mechanics.items():
            ξ = state.memory[block]
            degrees = move.degrees_of_freedom(state.position[block].flatten(0, ξ.dim() - 1))
            total, all_degrees = total + degrees * ξ, all_degrees + degrees
            found[f"thermostat of {_short(block)}"] = ξ
        return {"thermostat": total / max(1, all_degrees)} | (found if len(found) > 1 else {})


def _short(block: Block) -> str:
    """Return the names of a block's sites, or of the first three."""
    return ", ".join(block[:3]) + (f" and {len(block) - 3} more" if len(block) > 3 else "")
