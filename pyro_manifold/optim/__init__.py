"""Riemannian optimisers, which move parameters along manifolds, for `SVI` and as torch optimisers; and all of Pyro's.

A manifold is a smooth curved set, such as the matrices with orthonormal columns. `RiemannianAdam` is a `PyroOptim`, for
`SVI`; `TorchRiemannianAdam` is the `torch.optim.Optimizer` that it wraps. The other methods are named in the same way.
"""

from pyro_manifold.lookup import looked_up
from pyro_manifold.optim.mean_square import SecondMoment
from pyro_manifold.optim.pyro_optim import (
    RiemannianAdaDelta,
    RiemannianAdam,
    RiemannianMomentum,
    RiemannianRMSProp,
    RiemannianSGD,
)
from pyro_manifold.optim.riemannian import RiemannianOptimizer, has_components, parameter_groups
from pyro_manifold.optim.riemannian_adadelta import TorchRiemannianAdaDelta
from pyro_manifold.optim.riemannian_adam import TorchRiemannianAdam
from pyro_manifold.optim.riemannian_rmsprop import TorchRiemannianRMSProp
from pyro_manifold.optim.riemannian_sgd import TorchRiemannianMomentum, TorchRiemannianSGD

__all__ = [
    "RiemannianAdaDelta",
    "RiemannianAdam",
    "RiemannianMomentum",
    "RiemannianRMSProp",
    "RiemannianSGD",
    "SecondMoment",
    "TorchRiemannianAdaDelta",
    "TorchRiemannianAdam",
    "TorchRiemannianMomentum",
    "TorchRiemannianRMSProp",
    "TorchRiemannianSGD",
    "parameter_groups",
]

__getattr__, __dir__ = looked_up(__name__, {})
