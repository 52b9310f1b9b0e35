"""Automatic guides in addition to those of `pyro.infer.autoguide`."""

from pyro_manifold.infer.autoguide.low_rank import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)

__all__ = [
    "AutoGrassmannLowRankMultivariateNormal",
    "AutoProductStiefelLowRankMultivariateNormal",
    "AutoStiefelLowRankMultivariateNormal",
]
