"""Stochastic-gradient MCMC: kernels with minibatch gradients and no Metropolis test, and tools for custom ones."""

from pyro_manifold.infer.mcmc.mechanics import Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.osghmc import OSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.schedules import PolynomialDecay, Schedule, value_at
from pyro_manifold.infer.mcmc.sgmcmc.sghmc import euler_step, euler_variance, splitting_step
from pyro_manifold.infer.mcmc.sgmcmc.sgnht import mean_decay, thermostat_step
from pyro_manifold.infer.mcmc.sgmcmc.site_masses import SiteMasses, cancellation, windows
from pyro_manifold.infer.mcmc.sgmcmc.steps import Step, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings, StepSchedules, StochasticSteps
from pyro_manifold.infer.mcmc.sgmcmc.tuning import BatchAdaptation

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
