"""Bayesian inference over orthonormal matrices and manifolds, for Pyro."""

from pyro_manifold import contrib, diagnostics, distributions, infer, manifolds, nn, optim
from pyro_manifold.distributions import constraints
from pyro_manifold.version import __version__

__all__ = ["__version__", "constraints", "contrib", "diagnostics", "distributions", "infer", "manifolds", "nn", "optim"]
