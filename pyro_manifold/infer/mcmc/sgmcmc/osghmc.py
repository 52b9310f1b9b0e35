"""Stochastic-gradient Hamiltonian Monte Carlo on orthonormal matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.infer.mcmc.sgmcmc.sghmc import SGHMC
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class OSGHMC(SGHMC):
    r"""Stochastic-gradient HMC for models with orthonormal matrices, which move by rotations and stay orthonormal.

    A Stiefel site has the mechanics of `OHMC`: the drift is a Cayley rotation, the kick is along
    $P_X(\nabla U)$, and friction and noise act on the momentum. The noise has the covariance of the momenta,
    given by the kinetic energy $\tfrac12\|r\|^2 + \tfrac12\|X^\top r\|^2$, not the identity: projected noise of
    variance 1 gives a wrong stationary distribution. Unit vectors move along great circles, all other sites as in
    `SGHMC`.

    Arguments and errors are those of `SGHMC`.

    Source: Yanush & Kropotov, arXiv 1901.08045, whose update is ``integrator="euler"``; they do not specify the
    covariance of the noise.

    Examples:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC
        >>> F = torch.tensor([[3.0, 0.0], [0.0, 1.5], [0.0, 0.0]])
        >>> def model():
        ...     pyro.factor("langevin", (F * pyro.sample("X", StiefelUniform(3, 2))).sum())
        >>> mcmc = MCMC(OSGHMC(model, step_size=0.1, num_steps=5), 50, 20, num_chains=32, disable_progbar=True)
        >>> mcmc.run()
        >>> bool(((F * mcmc.get_samples()["X"]).sum((-2, -1)).mean() - 2.81).abs() < 0.2)
        True
    """

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {
        Stiefel: CayleyMechanics(),
        Sphere: GeodesicMechanics(Sphere()),
    }
