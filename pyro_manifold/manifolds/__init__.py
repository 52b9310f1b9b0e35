"""Geometry: pure, batched functions on points and tangent vectors. Imports torch only."""

from pyro_manifold.manifolds.base import Manifold
from pyro_manifold.manifolds.euclidean import Euclidean
from pyro_manifold.manifolds.grassmann import Grassmann
from pyro_manifold.manifolds.polar import polar_factor
from pyro_manifold.manifolds.sphere import Sphere
from pyro_manifold.manifolds.stiefel import Stiefel

__all__ = ["Euclidean", "Grassmann", "Manifold", "Sphere", "Stiefel", "polar_factor"]
