"""Geometry of manifolds: smooth curved sets of vectors or matrices, such as the sphere and the Stiefel manifold.

The Stiefel manifold is the set of n×p matrices with orthonormal columns. Pure, batched functions; imports torch only.
"""

from pyro_manifold.manifolds.base import Manifold
from pyro_manifold.manifolds.constant import Constant
from pyro_manifold.manifolds.euclidean import Euclidean
from pyro_manifold.manifolds.grassmann import Grassmann
from pyro_manifold.manifolds.polar import polar_factor, solve_lyapunov
from pyro_manifold.manifolds.reflector import rotate_rows
from pyro_manifold.manifolds.special_orthogonal import SpecialOrthogonal, with_positive_determinant
from pyro_manifold.manifolds.sphere import Sphere
from pyro_manifold.manifolds.stiefel import (
    Stiefel,
    cayley_flow,
    cayley_flow_by_rows,
    check_shape,
    geodesic_flow,
    positive_qr,
)

__all__ = ["Constant", "Euclidean", "Grassmann", "Manifold", "SpecialOrthogonal", "Sphere", "Stiefel", "polar_factor"]
