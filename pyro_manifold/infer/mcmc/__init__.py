"""MCMC kernels by family, and base classes for custom kernels; the user interface is `pyro_manifold.infer`."""

from pyro_manifold.infer.mcmc.arguments import (
    Superchains,
    chains_and_goals,
    check_data_loader,
    check_iterations,
    check_kernel,
    check_method,
    check_names,
    check_shards,
    check_vectorised,
    functions,
    stacked,
)
from pyro_manifold.infer.mcmc.checks import check_counts, check_positive, check_positive_integer, is_a
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel

__all__ = [
    "HamiltonianKernel",
    "Kernel",
    "StochasticGradientKernel",
]
