"""Riemannian optimisers, for `SVI` and as plain torch optimisers.

`RiemannianAdam` here is a `PyroOptim`; the `torch.optim.Optimizer` under it is
`pyro_manifold.optim.riemannian_adam.RiemannianAdam`, and so for the others.
"""

from pyro_manifold.optim.pyro_optim import (
    RiemannianAdaDelta,
    RiemannianAdam,
    RiemannianMomentum,
    RiemannianRMSProp,
    RiemannianSGD,
)
from pyro_manifold.optim.riemannian import parameter_groups

__all__ = [
    "RiemannianAdaDelta",
    "RiemannianAdam",
    "RiemannianMomentum",
    "RiemannianRMSProp",
    "RiemannianSGD",
    "parameter_groups",
]
