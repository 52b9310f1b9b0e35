"""Stochastic-gradient Langevin dynamics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pyro_manifold.infer.mcmc.mechanics import (
    CayleyMechanics,
    GeodesicMechanics,
    Mechanics,
    Metrics,
    ProductMechanics,
    at_temperature,
)
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import StepSchedules
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


def langevin_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
) -> StochasticState:
    r"""Take one Langevin step: a fresh momentum, half a kick, a drift for the time $h = \sqrt\varepsilon$.

    In Euclidean space $x \leftarrow x - \tfrac\varepsilon2 M^{-1}\nabla U + \sqrt{\varepsilon\tau}\,M^{-1/2} z$.
    On a manifold it is one step of Hamiltonian dynamics without the final kick: the drift preserves volume, so that no
    correction of the drift is needed.

    Source: Welling & Teh 2011, equation 4, for Euclidean space.
    """
    time = math.sqrt(settings.step_size)
    fresh = mechanics.momentum_from(noise, state.position, at_temperature(metrics, settings.temperature))
    kicked = mechanics.kick(state.position, fresh, state.gradient, time / 2)
    position, momentum = mechanics.drift(state.position, kicked, metrics, time)
    energy, gradient = potential(position)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=gradient)


class SGLD(StochasticGradientKernel):
    r"""Stochastic-gradient Langevin dynamics: gradient steps with added noise.

    $$ \theta \leftarrow \theta - \tfrac\varepsilon2 \nabla U + N(0, \varepsilon\tau) $$

    U is minus the log density on a minibatch, in unconstrained space. For a site on a manifold the same step is taken
    in tangent space and mapped to the manifold by the drift of `OHMC` (a rotation; for unit vectors along a great
    circle): a fresh momentum r, half a kick, a drift for the time $\sqrt\varepsilon$. The drift preserves volume
    in phase space, which accounts for the curvature, so that no correction of the drift is needed. (A retraction in its
    place, by QR or the polar factor, is equivalent to this order: for velocities v of this covariance
    $\mathbb E\, v^\top v$ is a multiple of the identity, and then all have the same mean acceleration.)

    The bias is proportional to ε and increases with gradient noise; it vanishes with a decaying step-size schedule.

    Arguments and errors are those of `StochasticGradientKernel`.

    Source: Welling & Teh, ICML 2011, equation 4.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> y = torch.randn(1000) + 2
        >>> def model():
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", 1000, subsample_size=50) as rows:
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
        >>> mcmc = MCMC(SGLD(model, step_size=2e-5, num_steps=10), 100, 100, disable_progbar=True)
        >>> mcmc.run()
        >>> bool((mcmc.get_samples()["mean"].mean() - y.mean()).abs() < 0.2)
        True
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {
        Stiefel: CayleyMechanics(),
        Sphere: GeodesicMechanics(Sphere()),
    }

    def step(self) -> Step:
        return langevin_step

    def plan(self) -> StepSchedules:
        return replace(super().plan(), step_is_squared_time=True)
