"""Stochastic-gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.steps import langevin_step
from pyro_manifold.infer.mcmc.sgmcmc.transition import Plan, Step
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class SGLD(StochasticGradientKernel):
    r"""Stochastic-gradient Langevin dynamics: gradient steps with noise.

    .. math:: \theta \leftarrow \theta - \tfrac\varepsilon2 \nabla U + N(0, \varepsilon\tau)

    U is minus the log density on a minibatch, in unconstrained space. A site on a manifold takes the same step in its
    tangent space and is brought back by the drift of `OHMC` (a rotation; unit vectors along a great circle): a fresh
    momentum r, half a kick, a drift for the time :math:`\sqrt\varepsilon`. The drift keeps volume in the space of
    positions and momenta, which makes up for the curvature: no correction of the drift is left to add. (A retraction in
    its place, by QR or the polar factor, gives the same to this order: for velocities v of this covariance
    :math:`\mathbb E\, v^\top v` is a multiple of the identity, and then all have the same mean acceleration.)

    The step is biased by a multiple of ε, more so the noisier the gradient; a schedule that decays takes the bias away.

    Args: as in `StochasticGradientKernel`.

    Source: Welling & Teh, ICML 2011, equation 4.

    Example:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC
        >>> y = torch.randn(1000) + 2
        >>> def model():
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", 1000, subsample_size=50) as rows:
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
        >>> mcmc = MCMC(SGLD(model, step_size=1e-4, num_steps=10), 100, 100, disable_progbar=True)
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

    def plan(self) -> Plan:
        return Plan(self._step_size, self._temperature, self._num_steps)
