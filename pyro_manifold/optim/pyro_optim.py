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

    Every other parameter is updated by the Euclidean version of the same method.

    Args:
        optim_args: options of the torch optimiser, or a function from the parameter name to them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for a loaded state that does
            not match.
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
    """Gradient descent along the manifold, for `SVI`.

    The step is that of `TorchRiemannianSGD`.

    Args:
        optim_args: options ``lr`` and ``momentum``, or a function from the parameter name to them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range.

    Source: Bonnabel 2013, arXiv 1111.5280.

    Examples:
        >>> optim = RiemannianSGD({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianSGD


class RiemannianMomentum(RiemannianPyroOptim):
    """Gradient descent with momentum along the manifold, for `SVI`.

    The step is that of `TorchRiemannianMomentum`.

    Args:
        optim_args: options ``lr`` and ``momentum`` (0.9), or a function from the parameter name to them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optim = RiemannianMomentum({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianMomentum


class RiemannianRMSProp(RiemannianPyroOptim):
    """RMSProp along the manifold, for `SVI`.

    The step is that of `TorchRiemannianRMSProp`.

    Args:
        optim_args: options ``lr``, ``alpha``, ``eps`` and ``second_moment``, or a function from the parameter name to
            them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optim = RiemannianRMSProp({"lr": 0.01})
    """

    torch_optimizer = TorchRiemannianRMSProp


class RiemannianAdaDelta(RiemannianPyroOptim):
    """AdaDelta along the manifold, for `SVI`.

    The step is that of `TorchRiemannianAdaDelta`.

    Args:
        optim_args: options ``lr``, ``rho``, ``eps`` and ``second_moment``, or a function from the parameter name to
            them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range.

    Source: Zeiler 2012, arXiv 1212.5701; Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optim = RiemannianAdaDelta({"rho": 0.9})
    """

    torch_optimizer = TorchRiemannianAdaDelta


class RiemannianAdam(RiemannianPyroOptim):
    """Adam along the manifold, for `SVI`.

    The step is that of `TorchRiemannianAdam`.

    Args:
        optim_args: options ``lr``, ``betas``, ``eps`` and ``second_moment``, or a function from the parameter name to
            them.
        clip_args: as in `pyro.optim.PyroOptim`.

    Raises:
        ValueError: for ``optim_args`` that are neither a dictionary nor a function; later, for options out of range.

    Source: Kingma & Ba 2015, arXiv 1412.6980.

    Examples:
        >>> optim = RiemannianAdam(lambda name: {"lr": 0.01 if name.endswith("cov_factor") else 0.001})
    """

    torch_optimizer = TorchRiemannianAdam
