"""Stochastic-gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, get_args

from pyro_manifold.infer.mcmc.checks import check_positive, is_a
from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import Integrator, StepSchedules
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential
from pyro_manifold.manifolds import Manifold


def splitting_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
) -> StochasticState:
    """Take one BAOAB step: half a kick, half a drift, friction and noise for a full step, half a drift, half a kick.

    The step is symmetric, so that its bias is of second order in ε, and zero for a Gaussian. The half kicks before and
    after a position use the same gradient, that of the batch on which the position was reached.

    Source: Leimkuhler & Matthews 2013 (BAOAB), with a Cayley rotation as drift of an orthonormal matrix.
    """
    half, (keep, variance) = settings.step_size / 2, _splitting_friction(settings)
    kicked = mechanics.kick(state.position, state.momentum, state.gradient, half)
    position, momentum = mechanics.drift(state.position, kicked, metrics, half)
    momentum = mechanics.slowed(momentum, keep, position, at_temperature(metrics, variance), noise)
    position, momentum = mechanics.drift(position, momentum, metrics, half)
    energy, gradient = potential(position)
    momentum = mechanics.kick(position, momentum, gradient, half)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=gradient)


def _splitting_friction(settings: StepSettings) -> tuple[float, float]:
    r"""Compute the fraction k of momentum that friction keeps, and the variance of its noise at unit mass.

    Noise of variance c added after each factor k eventually moves a position by $\varepsilon\sqrt c/(1-k)$. One
    half of the gradient noise n enters before the first half drift of a step, the other after its last half drift;
    together they move the position by $\varepsilon^2 n (1+k)/(2(1-k))$. With β̂ = ½ε² var(n),
    $c = \tau(1-k^2) - \hat\beta(1+k)^2/2$ gives positions the same variance as without gradient noise.
    """
    keep = math.exp(-settings.friction)
    return keep, max(0.0, settings.temperature * (1 - keep**2) - settings.noise_estimate * (1 + keep) ** 2 / 2)


def euler_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
) -> StochasticState:
    r"""Drift, then $r \leftarrow (1-\alpha) r - \varepsilon\nabla U + \sqrt{2(\alpha\tau - \hat\beta)}\,\xi$.

    ξ is a fresh draw of momenta. In the limit of short steps, positions have the temperature τ, and momenta
    $2\tau/(2-\alpha)$.

    Source: Chen, Fox & Guestrin 2014, equation 15; on orthonormal matrices Yanush & Kropotov, arXiv 1901.08045.
    """
    position, drifted = mechanics.drift(state.position, state.momentum, metrics, settings.step_size)
    energy, gradient = potential(position)
    fresh = at_temperature(metrics, euler_variance(settings))
    slowed = mechanics.slowed(drifted, 1 - settings.friction, position, fresh, noise)
    momentum = mechanics.kick(position, slowed, gradient, settings.step_size)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=gradient)


def euler_variance(settings: StepSettings) -> float:
    r"""Return the variance $2(\alpha\tau - \hat\beta)$ of the noise of a step at unit mass."""
    return 2 * max(0.0, settings.friction * settings.temperature - settings.noise_estimate)


class SGHMC(StochasticGradientKernel):
    r"""Stochastic-gradient Hamiltonian Monte Carlo, with friction and compensating noise on the momenta.

    $$ d\theta = r\,dt, \qquad dr = -\nabla U\,dt - \gamma r\,dt + \sqrt{2\gamma\tau}\,dW, $$

    U minus the log density on a minibatch, in unconstrained space; over a step of size ε, γε = α. The stationary
    distribution is $e^{-U/\tau}$, up to effects of step size and gradient noise. Gradient noise adds to W: with
    variance σ², independent between steps, it increases the variance of a standard normal coordinate by
    $\varepsilon^2 \sigma^2 / (2\alpha)$ for ``"euler"`` and by
    $\varepsilon^2 \sigma^2 / (4\tanh(\alpha/2))$ for ``"splitting"``, for small ε. A ``noise_estimate`` of
    $\varepsilon^2 \sigma^2 / 2$ removes this effect for any α and τ.

    ``integrator="splitting"`` (BAOAB) composes half a kick, half a drift, the exact solution of friction and noise,
    half a drift and half a kick: it is symmetric, and unbiased for Gaussian U without gradient noise. ``"euler"`` is
    $r \leftarrow (1-\alpha) r - \varepsilon\nabla U + N(0, 2(\alpha\tau - \hat\beta))$ after a full drift.
    For orthonormal matrices use `OSGHMC`.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the step number, such as `CosineCycles`.
        friction: α > 0: a step keeps the fraction $e^{-\alpha}$ of the momentum, 1 - α for ``"euler"``.
        noise_estimate: β̂ ≥ 0 and below α, ½ε² times the variance of the gradient noise. The added noise is reduced
            accordingly, at most to zero.
        resample_momentum: whether momenta are fully refreshed before each iteration.
        integrator: ``"splitting"`` or ``"euler"``.
        **options: as in `StochasticGradientKernel`.

    Raises:
        ValueError: for an argument out of range, and if a schedule returns a negative value.

    Source: Chen, Fox & Guestrin, ICML 2014, equation 15.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> y = torch.randn(1000) + 2
        >>> def model():
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", 1000, subsample_size=50) as rows:
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
        >>> mcmc = MCMC(SGHMC(model, step_size=0.001, num_steps=20), 100, 100, disable_progbar=True)
        >>> mcmc.run()
        >>> bool((mcmc.get_samples()["mean"].mean() - y.mean()).abs() < 0.2)
        True
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {}

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        step_size: float | Schedule,
        friction: float = 0.1,
        noise_estimate: float = 0.0,
        resample_momentum: bool = False,
        integrator: Integrator = "splitting",
        **options: Any,
    ) -> None:
        super().__init__(model, potential_fn, step_size=step_size, **options)
        if integrator not in get_args(Integrator):
            raise ValueError(f"integrator={integrator!r}, expected one of {list(get_args(Integrator))}.")
        check_positive(friction=friction)
        if integrator == "euler" and friction > 1:
            raise ValueError(
                f"friction={friction}, expected at most 1 for integrator='euler', the fraction of momentum lost per "
                "step."
            )
        if not is_a(Real, noise_estimate) or not 0 <= noise_estimate < friction:
            raise ValueError(f"noise_estimate={noise_estimate!r}, expected a number ≥ 0 and below friction={friction}.")
        self._friction, self._noise_estimate = friction, noise_estimate
        self._resample_momentum, self._integrator = resample_momentum, integrator

    def step(self) -> Step:
        return splitting_step if self._integrator == "splitting" else euler_step

    def plan(self) -> StepSchedules:
        euler = self._integrator == "euler"
        return StepSchedules(
            self._step_size,
            self._temperature,
            self._num_steps,
            self._friction,
            self._noise_estimate,
            self._resample_momentum,
            momentum_variance=2 / (2 - self._friction) if euler else 1.0,
            heating=1 / (2 * self._friction) if euler else 1 / (4 * math.tanh(self._friction / 2)),
        )
