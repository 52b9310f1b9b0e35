"""Bayesian inference over orthonormal matrices and manifolds, for Pyro."""

from pyro_manifold import diagnostics, distributions, infer, manifolds, nn, optim
from pyro_manifold.distributions import constraints

__version__ = "0.1.0"

__all__ = ["__version__", "constraints", "diagnostics", "distributions", "infer", "manifolds", "nn", "optim"]
