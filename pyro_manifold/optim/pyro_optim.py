"""The Riemannian optimisers as Pyro's `SVI` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyro.optim import PyroOptim

from pyro_manifold.optim import (
    riemannian_adadelta,
    riemannian_adam,
    riemannian_rmsprop,
    riemannian_sgd,
)
from pyro_manifold.optim.riemannian import RiemannianOptimizer

Options = dict[str, Any] | Callable[..., dict[str, Any]]


class RiemannianPyroOptim(PyroOptim):
    """A `PyroOptim` that keeps parameters with a stiefel, grassmann or sphere constraint on their manifold.

    Every other parameter takes the Euclidean steps of the same method.

    Args:
        optim_args: options of the torch optimiser, or a function from the parameter's name to them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for optim_args of another kind; later, for a loaded state that does not fit.
    """

    torch_optimizer: ClassVar[type[RiemannianOptimizer]]

    def __init__(self, optim_args: Options, clip_args: Options | None = None, **misplaced: Any) -> None:
        if misplaced or not (callable(optim_args) or isinstance(optim_args, dict)):
            given = f"{optim_args!r:.60}" + (f" with {misplaced}" if misplaced else "")
            raise ValueError(
                f"{type(self).__name__}: optim_args is {given}, expected a dict of options like "
                "{'lr': 0.01} or a function from a parameter's name to one; where a torch optimiser is wanted, as in "
                f"Pyro's schedulers, give {self.torch_optimizer.__module__}.{self.torch_optimizer.__name__}."
            )
        super().__init__(self.torch_optimizer, optim_args, clip_args)


class RiemannianSGD(RiemannianPyroOptim):
    """Wraps `pyro_manifold.optim.riemannian_sgd.RiemannianSGD`: ``lr``, ``momentum``.

    Example:
        >>> optim = RiemannianSGD({"lr": 0.01})
    """

    torch_optimizer = riemannian_sgd.RiemannianSGD


class RiemannianMomentum(RiemannianPyroOptim):
    """Wraps `pyro_manifold.optim.riemannian_sgd.RiemannianMomentum`: ``lr``, ``momentum`` (0.9).

    Example:
        >>> optim = RiemannianMomentum({"lr": 0.01})
    """

    torch_optimizer = riemannian_sgd.RiemannianMomentum


class RiemannianRMSProp(RiemannianPyroOptim):
    """Wraps `pyro_manifold.optim.riemannian_rmsprop.RiemannianRMSProp`: ``lr``, ``alpha``, ``eps``, ``second_moment``.

    Example:
        >>> optim = RiemannianRMSProp({"lr": 0.01})
    """

    torch_optimizer = riemannian_rmsprop.RiemannianRMSProp


class RiemannianAdaDelta(RiemannianPyroOptim):
    """Wraps `pyro_manifold.optim.riemannian_adadelta.RiemannianAdaDelta`: ``lr``, ``rho``, ``eps``, ``second_moment``.

    Example:
        >>> optim = RiemannianAdaDelta({"rho": 0.9})
    """

    torch_optimizer = riemannian_adadelta.RiemannianAdaDelta


class RiemannianAdam(RiemannianPyroOptim):
    """Wraps `pyro_manifold.optim.riemannian_adam.RiemannianAdam`: ``lr``, ``betas``, ``eps``, ``second_moment``.

    Example:
        >>> optim = RiemannianAdam(lambda name: {"lr": 0.01 if name.endswith("cov_factor") else 0.001})
    """

    torch_optimizer = riemannian_adam.RiemannianAdam
