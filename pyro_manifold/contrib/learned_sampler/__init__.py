"""NNSGHMC, a meta-learned stochastic-gradient sampler: its networks, its step, and its files; `training` trains it."""

from pyro_manifold.contrib.learned_sampler.coordinate_update import (
    ELEMENTS_AT_ONCE,
    Columns,
    CoordinateUpdate,
    in_parts,
)
from pyro_manifold.contrib.learned_sampler.energy import EnergyInput
from pyro_manifold.contrib.learned_sampler.files import check_folder, read, write
from pyro_manifold.contrib.learned_sampler.guard import (
    HOT,
    WINDOW,
    Guard,
    GuardedSteps,
    LeftPosteriorError,
    Record,
    Window,
    have_left,
)
from pyro_manifold.contrib.learned_sampler.network import CoordinateNetwork
from pyro_manifold.contrib.learned_sampler.nnsghmc import NNSGHMC
from pyro_manifold.contrib.learned_sampler.sampler import (
    Coefficients,
    Derivatives,
    Learned,
    MetaSampler,
    Scaling,
    check_derivatives,
)
from pyro_manifold.contrib.learned_sampler.step import first_squares, learned_step

__all__ = ["NNSGHMC", "MetaSampler"]
