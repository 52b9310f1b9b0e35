"""Layers of neural networks whose weights have orthonormal rows or columns, and priors for existing networks."""

from pyro_manifold.nn.conversion import to_bayesian_
from pyro_manifold.nn.low_rank import LowRankLinear
from pyro_manifold.nn.orthogonal import OrthogonalConv2d, OrthogonalLinear
from pyro_manifold.nn.state_dicts import sites_from_state_dicts

__all__ = ["LowRankLinear", "OrthogonalConv2d", "OrthogonalLinear", "sites_from_state_dicts", "to_bayesian_"]
