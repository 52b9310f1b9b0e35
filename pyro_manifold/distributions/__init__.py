"""Distributions of matrices with orthonormal columns, constraints and transforms, in modules named as in Pyro.

The set of n×p matrices with orthonormal columns is the Stiefel manifold V(n, p). Densities on it are with respect to
its uniform distribution, the normalised Haar measure.
"""

from pyro_manifold.distributions import constraints, transforms
from pyro_manifold.distributions.bingham import Bingham
from pyro_manifold.distributions.bingham_normaliser import log_bingham_normaliser
from pyro_manifold.distributions.constraints import (
    HouseholderStiefelConstraint,
    log_base_measure,
    manifold_of,
    of_elements,
    stiefel,
)
from pyro_manifold.distributions.grassmann import GrassmannLangevin, GrassmannUniform
from pyro_manifold.distributions.langevin_normaliser import langevin_mean, log_langevin_normaliser
from pyro_manifold.distributions.matrix_angular_central_gaussian import MatrixAngularCentralGaussian
from pyro_manifold.distributions.matrix_bingham import MatrixBingham
from pyro_manifold.distributions.matrix_bingham_von_mises_fisher import MatrixBinghamVonMisesFisher
from pyro_manifold.distributions.matrix_fisher import MatrixFisher, quaternion_form, rotation_of
from pyro_manifold.distributions.matrix_langevin import MatrixLangevin
from pyro_manifold.distributions.normal_singular_values import NormalSingularValues
from pyro_manifold.distributions.on_manifold import OnStiefel, off_manifold
from pyro_manifold.distributions.ordered import Ordered, OrderedHalfNormal
from pyro_manifold.distributions.rejection import sample_by_rejection
from pyro_manifold.distributions.repeated_rows import repeated_rows
from pyro_manifold.distributions.special_orthogonal_uniform import SpecialOrthogonalUniform
from pyro_manifold.distributions.sphere_mean import log_sphere_mean, scaled_log_sphere_mean
from pyro_manifold.distributions.sphere_normaliser import mean_resultant_length, scaled_log_normaliser
from pyro_manifold.distributions.stiefel_uniform import StiefelUniform, stiefel_support
from pyro_manifold.distributions.von_mises_fisher import VonMisesFisher, sample_von_mises_fisher
from pyro_manifold.lookup import looked_up

__all__ = [
    "Bingham",
    "GrassmannLangevin",
    "GrassmannUniform",
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamVonMisesFisher",
    "MatrixFisher",
    "MatrixLangevin",
    "NormalSingularValues",
    "Ordered",
    "OrderedHalfNormal",
    "SpecialOrthogonalUniform",
    "StiefelUniform",
    "VonMisesFisher",
    "constraints",
    "log_bingham_normaliser",
    "log_langevin_normaliser",
    "transforms",
]

__getattr__, __dir__ = looked_up(__name__, {})
