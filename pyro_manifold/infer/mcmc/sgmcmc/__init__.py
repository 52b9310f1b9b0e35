"""Stochastic-gradient MCMC: kernels with minibatch gradients and no Metropolis test, and tools for custom ones."""

from pyro_manifold.infer.mcmc.hmc.product import Metrics as Metrics
from pyro_manifold.infer.mcmc.hmc.product import ProductMechanics as ProductMechanics
from pyro_manifold.infer.mcmc.hmc.product import at_temperature as at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel as StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step as Step
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings as StepSettings
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState as StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import StepSchedules as StepSchedules
