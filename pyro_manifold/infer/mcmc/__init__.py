"""MCMC kernels by family, and base classes for custom kernels; the user interface is `pyro_manifold.infer`."""

from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel

__all__ = [
    "HamiltonianKernel",
    "Kernel",
    "StochasticGradientKernel",
]
