"""Tools that do not depend on manifolds: data-parallel SVI."""

from pyro_manifold.contrib.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
