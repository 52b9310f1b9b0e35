"""Stochastic-gradient MCMC: kernels with minibatch gradients and no Metropolis test, and tools for custom ones."""

from pyro_manifold.infer.mcmc.hmc.product import Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import StepSchedules

__all__ = [
    "Metrics",
    "ProductMechanics",
    "Step",
    "StepSchedules",
    "StepSettings",
    "StochasticGradientKernel",
    "StochasticState",
    "at_temperature",
]
