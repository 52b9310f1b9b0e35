"""Kernels and the loop that runs them."""

from pyro_manifold.infer.mcmc.api import MCMC
from pyro_manifold.infer.mcmc.hmc.ghmc import GHMC
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.riemannian.msd import MSD

__all__ = ["GHMC", "MCMC", "MSD", "OHMC", "HamiltonianKernel", "Kernel"]
