"""Geometry of manifolds: smooth curved sets of vectors or matrices, such as the sphere and the Stiefel manifold.

The Stiefel manifold is the set of n×p matrices with orthonormal columns. Pure, batched functions; imports torch only.
"""

from pyro_manifold.manifolds.base import Manifold
from pyro_manifold.manifolds.constant import Constant
from pyro_manifold.manifolds.euclidean import Euclidean
from pyro_manifold.manifolds.grassmann import Grassmann
from pyro_manifold.manifolds.polar import polar_factor
from pyro_manifold.manifolds.special_orthogonal import SpecialOrthogonal
from pyro_manifold.manifolds.sphere import Sphere
from pyro_manifold.manifolds.stiefel import Stiefel

__all__ = ["Constant", "Euclidean", "Grassmann", "Manifold", "SpecialOrthogonal", "Sphere", "Stiefel", "polar_factor"]
