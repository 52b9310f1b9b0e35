"""Simulation-based calibration of a user's model and sampler: simulation, fits, ranked quantities, their test."""

from pyro_manifold.contrib.calibration.fits import StoredError
from pyro_manifold.contrib.calibration.result import Calibration
from pyro_manifold.contrib.calibration.simulation import Conditioned
from pyro_manifold.contrib.calibration.study import calibrate
from pyro_manifold.contrib.calibration.uniformity import (
    BINS,
    NUMBERS_OF_DRAWS,
    Uniformity,
    autocorrelation,
    number_of_draws,
    ranks_of_points,
    spaced,
)

__all__ = ["Calibration", "calibrate"]
