"""Meta-learned stochastic-gradient sampler: its networks, its step, and its files."""

from pyro_manifold.infer.mcmc.sgmcmc.meta.coordinate_update import ELEMENTS_AT_ONCE, Columns, CoordinateUpdate, in_parts
from pyro_manifold.infer.mcmc.sgmcmc.meta.energy import EnergyInput
from pyro_manifold.infer.mcmc.sgmcmc.meta.files import check_folder, read, write
from pyro_manifold.infer.mcmc.sgmcmc.meta.guard import (
    HOT,
    WINDOW,
    Guard,
    GuardedSteps,
    LeftPosteriorError,
    Record,
    Window,
    have_left,
)
from pyro_manifold.infer.mcmc.sgmcmc.meta.network import CoordinateNetwork
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import (
    Coefficients,
    Derivatives,
    Learned,
    MetaSampler,
    Scaling,
    check_derivatives,
)
from pyro_manifold.infer.mcmc.sgmcmc.meta.step import first_squares, learned_step
