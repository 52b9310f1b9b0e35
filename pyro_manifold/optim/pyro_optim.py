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
    """A `PyroOptim` that keeps parameters with a Stiefel, Grassmann or sphere constraint on their manifold, for `SVI`.

    Every other parameter is updated by the Euclidean version of the same method. Formula, options and source are those
    of its torch optimiser.

    Args:
        optim_args: options of the torch optimiser, or a function from the parameter name to them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range
            and for a loaded state that does not match.
    """

    torch_optimizer: ClassVar[type[RiemannianOptimizer]]

    def __init__(self, optim_args: Options, clip_args: Options | None = None, **misplaced: Any) -> None:
        if misplaced or not (callable(optim_args) or isinstance(optim_args, dict)):
            given = f"{optim_args!r:.60}" + (f" with {misplaced}" if misplaced else "")
            raise ValueError(
                f"{type(self).__name__}: optim_args is {given}, expected a dict of options like "
                "{'lr': 0.01} or a function from a parameter's name to one; where a torch optimiser is needed, as in "
                f"Pyro's schedulers, pass pyro_manifold.optim.{self.torch_optimizer.__name__}."
            )
        super().__init__(self.torch_optimizer, optim_args, clip_args)


class RiemannianSGD(RiemannianPyroOptim):
    """`TorchRiemannianSGD` as a `PyroOptim`, with its options.

    Examples:
        >>> optim = RiemannianSGD({"lr": 0.01, "momentum": 0.5})
    """

    torch_optimizer = TorchRiemannianSGD


class RiemannianMomentum(RiemannianPyroOptim):
    """`TorchRiemannianMomentum` as a `PyroOptim`, with its options.

    Examples:
        >>> optim = RiemannianMomentum({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianMomentum


class RiemannianRMSProp(RiemannianPyroOptim):
    """`TorchRiemannianRMSProp` as a `PyroOptim`, with its options.

    Examples:
        >>> optim = RiemannianRMSProp({"lr": 0.01, "alpha": 0.9})
    """

    torch_optimizer = TorchRiemannianRMSProp


class RiemannianAdaDelta(RiemannianPyroOptim):
    """`TorchRiemannianAdaDelta` as a `PyroOptim`, with its options.

    Examples:
        >>> optim = RiemannianAdaDelta({"rho": 0.9})
    """

    torch_optimizer = TorchRiemannianAdaDelta


class RiemannianAdam(RiemannianPyroOptim):
    """`TorchRiemannianAdam` as a `PyroOptim`, with its options.

    Examples:
        >>> optim = RiemannianAdam(lambda name: {"lr": 0.01 if name.endswith("cov_factor") else 0.001})
    """

    torch_optimizer = TorchRiemannianAdam
