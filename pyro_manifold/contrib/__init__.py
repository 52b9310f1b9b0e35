"""Parts that the core does not import: SVI over processes, and what `infer` and `diagnostics` look up when it is used.

`calibration`: simulation-based calibration. `cross_validation`: K-fold cross-validation. `learned_sampler`: NNSGHMC and
the training of its networks. `replica_exchange`: a plug-in of ``MCMC(..., tempering=...)``.
"""

from pyro_manifold.contrib.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
