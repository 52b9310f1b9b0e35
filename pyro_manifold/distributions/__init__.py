"""Laws on manifolds, constraints and charts; each name stands where Pyro has its own."""

from pyro_manifold.distributions import constraints, transforms
from pyro_manifold.distributions.matrix_langevin import MatrixLangevin
from pyro_manifold.distributions.stiefel_uniform import StiefelUniform

__all__ = ["MatrixLangevin", "StiefelUniform", "constraints", "transforms"]
