"""Stochastic-gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, get_args

from pyro_manifold.infer.mcmc.checks import check_positive, is_a
from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule
from pyro_manifold.infer.mcmc.sgmcmc.steps import euler_step, splitting_step
from pyro_manifold.infer.mcmc.sgmcmc.transition import Integrator, Plan, Step
from pyro_manifold.manifolds import Manifold


class SGHMC(StochasticGradientKernel):
    r"""Stochastic-gradient Hamiltonian Monte Carlo: momenta with friction, and noise that makes up for it.

    .. math::
        d\theta = r\,dt, \qquad dr = -\nabla U\,dt - \gamma r\,dt + \sqrt{2\gamma\tau}\,dW,

    U minus the log density on a minibatch, in unconstrained space; over a step of size ε, γε = α. Its stationary
    distribution is :math:`e^{-U/\tau}`, up to the step size and the noise of the gradient. That noise adds to W: with a
    variance σ² it makes the variance of a standard normal coordinate larger by about
    :math:`\varepsilon^2 \sigma^2 / (2\alpha)`; a ``noise_estimate`` of :math:`\varepsilon^2 \sigma^2 / 2` takes that
    away.

    ``integrator="splitting"`` composes half a kick, half a drift, the exact solution of friction and noise, half a
    drift and half a kick: symmetric, and exact for Gaussian U without noise. ``"euler"`` is
    :math:`r \leftarrow (1-\alpha) r - \varepsilon\nabla U + N(0, 2(\alpha - \hat\beta)\tau)` after a whole drift.
    Orthonormal matrices need `OSGHMC`.

    Args:
        model: a Pyro model; plates with ``subsample_size`` draw a new minibatch at each step.
        potential_fn: as in `Kernel`.
        step_size: ε, a number or a function of the number of the step, such as `CosineCycles`.
        friction: α > 0: a step keeps :math:`e^{-\alpha}` of the momentum, 1 - α under ``"euler"``.
        noise_estimate: β̂ ≥ 0 and below α, ½ε² times the variance of the gradient's noise.
        resample_momentum: whether each iteration begins with fresh momenta.
        integrator: ``"splitting"`` or ``"euler"``.
        **options: as in `StochasticGradientKernel`.

    Raises:
        ValueError: for an argument out of range, and when a schedule is negative.

    Source: Chen, Fox & Guestrin, ICML 2014, equation 15.

    Example:
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
            raise ValueError(f"friction={friction}, expected at most 1 for integrator='euler', which loses that share.")
        if not is_a(Real, noise_estimate) or not 0 <= noise_estimate < friction:
            raise ValueError(f"noise_estimate={noise_estimate!r}, expected a number ≥ 0 and below friction={friction}.")
        self._friction, self._noise_estimate = friction, noise_estimate
        self._resample_momentum, self._integrator = resample_momentum, integrator

    def step(self) -> Step:
        return splitting_step if self._integrator == "splitting" else euler_step

    def plan(self) -> Plan:
        return Plan(
            self._step_size,
            self._temperature,
            self._num_steps,
            self._friction,
            self._noise_estimate,
            self._resample_momentum,
        )
