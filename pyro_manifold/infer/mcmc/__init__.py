"""Hamiltonian Monte Carlo on manifolds."""

from pyro_manifold.infer.mcmc.api import MCMC
from pyro_manifold.infer.mcmc.ghmc import GHMC
from pyro_manifold.infer.mcmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.msd import MSD
from pyro_manifold.infer.mcmc.ohmc import OHMC

__all__ = ["GHMC", "MCMC", "MSD", "OHMC", "HamiltonianKernel"]
