"""Laws on manifolds, constraints and charts; each name stands where Pyro has its own."""

from pyro_manifold.distributions import constraints, transforms
from pyro_manifold.distributions.matrix_angular_central_gaussian import MatrixAngularCentralGaussian
from pyro_manifold.distributions.matrix_bingham import MatrixBingham
from pyro_manifold.distributions.matrix_bingham_von_mises_fisher import MatrixBinghamVonMisesFisher
from pyro_manifold.distributions.matrix_langevin import MatrixLangevin
from pyro_manifold.distributions.stiefel_uniform import StiefelUniform

__all__ = [
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamVonMisesFisher",
    "MatrixLangevin",
    "StiefelUniform",
    "constraints",
    "transforms",
]
