"""Guides beside those of `pyro.infer.autoguide`."""

from pyro_manifold.infer.autoguide.low_rank import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)

__all__ = ["AutoGrassmannLowRankMultivariateNormal", "AutoStiefelLowRankMultivariateNormal"]
