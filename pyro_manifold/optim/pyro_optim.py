"""Riemannian optimisers as `PyroOptim`, for Pyro's `SVI`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyro.optim import PyroOptim

from pyro_manifold.optim.riemannian import RiemannianOptimizer
from pyro_manifold.optim.riemannian_adadelta import TorchRiemannianAdaDelta
from pyro_manifold.optim.riemannian_adam import TorchRiemannianAdam
from pyro_manifold.optim.riemannian_rmsprop import TorchRiemannianRMSProp
from pyro_manifold.optim.riemannian_sgd import TorchRiemannianMomentum, TorchRiemannianSGD

Options = dict[str, Any] | Callable[..., dict[str, Any]]


class RiemannianPyroOptim(PyroOptim):
    """A `PyroOptim` that keeps parameters with a Stiefel, Grassmann or sphere constraint on their manifold.

    Every other parameter is updated by the Euclidean form of the same method.

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
                f"Pyro's schedulers, give pyro_manifold.optim.{self.torch_optimizer.__name__}."
            )
        super().__init__(self.torch_optimizer, optim_args, clip_args)


class RiemannianSGD(RiemannianPyroOptim):
    """Gradient descent along the manifold, for `SVI`. Options are those of `TorchRiemannianSGD`: ``lr``, ``momentum``.

    Examples:
        >>> optim = RiemannianSGD({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianSGD


class RiemannianMomentum(RiemannianPyroOptim):
    """Gradient descent with momentum, for `SVI`.

    Options are those of `TorchRiemannianMomentum`: ``lr``, ``momentum`` (0.9).

    Examples:
        >>> optim = RiemannianMomentum({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianMomentum


class RiemannianRMSProp(RiemannianPyroOptim):
    """RMSProp along the manifold, for `SVI`.

    Options are those of `TorchRiemannianRMSProp`: ``lr``, ``alpha``, ``eps``, ``second_moment``.

    Examples:
        >>> optim = RiemannianRMSProp({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianRMSProp


class RiemannianAdaDelta(RiemannianPyroOptim):
    """AdaDelta along the manifold, for `SVI`.

    Options are those of `TorchRiemannianAdaDelta`: ``lr``, ``rho``, ``eps``, ``second_moment``.

    Examples:
        >>> optim = RiemannianAdaDelta({"rho": 0.9})
    """

    torch_optimizer = TorchRiemannianAdaDelta


class RiemannianAdam(RiemannianPyroOptim):
    """Adam along the manifold, for `SVI`.

    Options are those of `TorchRiemannianAdam`: ``lr``, ``betas``, ``eps``, ``second_moment``.

    Examples:
        >>> optim = RiemannianAdam(lambda name: {"lr": 0.01 if name.endswith("cov_factor") else 0.001})
    """

    torch_optimizer = TorchRiemannianAdam
