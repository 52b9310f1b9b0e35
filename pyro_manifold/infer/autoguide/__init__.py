"""Automatic guides in addition to those of `pyro.infer.autoguide`."""

from pyro_manifold.infer.autoguide.identified import IdentifiedCovariance, canonical_form
from pyro_manifold.infer.autoguide.low_rank import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.infer.autoguide.path_derivative import PathDerivative

__all__ = [
    "AutoGrassmannLowRankMultivariateNormal",
    "AutoProductStiefelLowRankMultivariateNormal",
    "AutoStiefelLowRankMultivariateNormal",
    "IdentifiedCovariance",
    "PathDerivative",
]
