"""Stochastic-gradient MCMC: kernels with minibatch gradients and no Metropolis test, and tools for custom ones."""

from pyro_manifold.infer.mcmc.hmc.product import Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.nnsghmc import NNSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.schedules import PolynomialDecay
from pyro_manifold.infer.mcmc.sgmcmc.sghmc import euler_step, splitting_step
from pyro_manifold.infer.mcmc.sgmcmc.sgnht import mean_decay, thermostat_step
from pyro_manifold.infer.mcmc.sgmcmc.site_masses import cancellation, windows
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings, StepSchedules, StochasticSteps

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
