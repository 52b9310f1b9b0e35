"""Automatic guides in addition to those of `pyro.infer.autoguide`, which are here too."""

from pyro_manifold.infer.autoguide.identified import IdentifiedCovariance, canonical_form
from pyro_manifold.infer.autoguide.low_rank import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.infer.autoguide.path_derivative import PathDerivative
from pyro_manifold.lookup import looked_up

__all__ = [
    "AutoGrassmannLowRankMultivariateNormal",
    "AutoProductStiefelLowRankMultivariateNormal",
    "AutoStiefelLowRankMultivariateNormal",
    "IdentifiedCovariance",
    "PathDerivative",
]

__getattr__, __dir__ = looked_up(__name__, {})
