"""Stochastic-gradient MCMC kernels, which use minibatch gradients and no Metropolis test; and the tools to make one."""

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
