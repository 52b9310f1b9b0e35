"""Tools that do not depend on manifolds: data-parallel SVI, and scores of predictive probabilities."""

from pyro_manifold.contrib.distributed import DistributedOptimizer
from pyro_manifold.contrib.predictive_quality import (
    agreement,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    out_of_distribution_auroc,
    predictive_entropy,
    total_variation,
)

__all__ = [
    "DistributedOptimizer",
    "agreement",
    "brier_score",
    "expected_calibration_error",
    "negative_log_likelihood",
    "out_of_distribution_auroc",
    "predictive_entropy",
    "total_variation",
]
