"""Posteriors of kinds that others have published, with published or simulated data, to judge tuning rules on."""

from functools import cache

from benchmarks.problems.posterior import Posterior
from benchmarks.problems.published.hierarchies import hierarchies
from benchmarks.problems.published.latent import latent
from benchmarks.problems.published.orthonormal import orthonormal
from benchmarks.problems.published.regressions import regressions
from benchmarks.problems.published.time_series import time_series


@cache
def published() -> dict[str, Posterior]:
    """Return all of them by name."""
    return {**hierarchies(), **regressions(), **time_series(), **latent(), **orthonormal()}
