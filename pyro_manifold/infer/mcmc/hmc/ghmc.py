"""GHMC: geodesic Monte Carlo."""

from __future__ import annotations

from typing import ClassVar

from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.mechanics import GeodesicMechanics, Mechanics
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class GHMC(HamiltonianKernel):
    r"""Geodesic Monte Carlo: Hamiltonian Monte Carlo with drifts along geodesics of the Euclidean metric.

    For r tangent at X and a scalar mass m, $K = \tfrac12 \|r\|^2 / m$ and

    $$
    r \leftarrow r - \tfrac{\varepsilon}{2} P_X(\nabla U), \quad
    [X, r] \leftarrow [X, r] \exp\!\left(\tfrac{\varepsilon}{m} \begin{bmatrix} A & -S \\ I & A \end{bmatrix}\right)
    \begin{bmatrix} e^{-\varepsilon A / m} & 0 \\ 0 & e^{-\varepsilon A / m} \end{bmatrix},
    \quad A = X^\top r, \; S = r^\top r,
    $$

    great circles for p = 1 and for unit vectors (``constraints.sphere``). Arguments and errors are those of `OHMC`,
    which uses a Cayley transform instead of two matrix exponentials and so costs less per step. The stationary
    distribution is exactly the posterior (densities with respect to the normalised Haar measure).

    In other libraries GHMC stands for *generalised* HMC, which keeps part of the momentum between trajectories; here
    that is ``persistence``, 0 by default.

    Source: Byrne & Girolami, Geodesic Monte Carlo on embedded manifolds, Scand. J. Statist. 2013, arXiv 1301.6064,
    algorithm 1.

    Examples:
        >>> import pyro, torch
        >>> from pyro.distributions import ProjectedNormal
        >>> from pyro_manifold.infer import MCMC
        >>> def model():
        ...     direction = pyro.sample("direction", ProjectedNormal(torch.tensor([2.0, 0.0, 0.0])))
        >>> mcmc = MCMC(GHMC(model), num_samples=10, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["direction"].shape
        torch.Size([10, 3])
    """

    manifold_mechanics: ClassVar[dict[type[Manifold], Mechanics]] = {
        Stiefel: GeodesicMechanics(Stiefel()),
        Sphere: GeodesicMechanics(Sphere()),
    }
