"""Simulation-based calibration of a user's model and sampler: simulation, fits, ranked quantities."""

from pyro_manifold.infer.calibration.fits import StoredError
from pyro_manifold.infer.calibration.simulation import Conditioned
