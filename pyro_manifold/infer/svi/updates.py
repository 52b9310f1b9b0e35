"""Parameter updates of Pyro's optimisers, jointly for all parameters if the method is Adam's.

A `PyroOptim` has a torch optimiser for each parameter, and a step of each takes longer than the gradient of a small
model. The state stays in those optimisers, so that saving, schedules and changed options have the usual effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from pyro.optim import PyroOptim
from pyro.optim.clipped_adam import ClippedAdam
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor
from torch.optim import Adam, Optimizer

from pyro_manifold.manifolds import Euclidean
from pyro_manifold.optim import TorchRiemannianAdam

_CALLS = PyroOptim.__call__, PyroLRScheduler.__call__


class _Rates(NamedTuple):
    """Constants of one step of Adam."""

    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    eps: float


class _Method(NamedTuple):
    """Description of an optimiser as a variant of Adam.

    Attributes:
        moments: names of the first and second moments in its state.
        fits: function that returns whether the options of an optimiser and its parameter make it plain Adam.
        rates: function from the options and the step number, from 1, to the constants of a step; may modify the
            options.
        clips: whether entries of gradients are limited to ``clip_norm``.
    """

    moments: tuple[str, str]
    fits: Callable[[Any, dict[str, Any], Tensor], bool]
    rates: Callable[[dict[str, Any], Any], _Rates]
    clips: bool = False


def torch_optimizer(optim: PyroOptim, parameter: Tensor) -> Optimizer | None:
    """Return the torch optimiser of a parameter; None before its first step."""
    own: Any = optim.optim_objs.get(parameter)
    found: Optimizer | None = getattr(own, "optimizer", own)
    return found


class Update:
    """Step of a `PyroOptim` from given gradients, equivalent to calling it.

    Args:
        optim: the optimiser.
        parameters: unconstrained parameters.
        gradients: tensors that contain their gradients at each call.
    """

    def __init__(self, optim: PyroOptim, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        self.optim, self._parameters, self._gradients = optim, list(parameters), list(gradients)
        self._joined: _Joined | None = None
        self._others = list(range(len(self._parameters)))

    def __call__(self) -> None:
        """Take one step."""
        if self._joined is not None and not self._joined.is_current():
            self._join()
        if self._joined is not None:
            self._joined.step()
        if self._others:
            rest = [self._parameters[k] for k in self._others]
            for parameter, k in zip(rest, self._others, strict=True):
                parameter.grad = self._gradients[k].clone()  # the optimiser may change or keep it
            self.optim(rest)
            for parameter in rest:
                parameter.grad = None
        if self._joined is None:
            self._join()

    def _join(self) -> None:
        """Find the parameters that can be updated jointly; optimisers have state only after their first step."""
        every = range(len(self._parameters))
        places = [k for k in every if _fits(self.optim, self._parameters[k])]
        self._others = [k for k in every if k not in places]
        chosen = [self._parameters[k] for k in places], [self._gradients[k] for k in places]
        self._joined = _Joined(self.optim, *chosen) if places else None


class _Joined:
    """Parameters that are updated by one operator."""

    def __init__(self, optim: PyroOptim, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        self._optim, self._gradients = optim, gradients
        self._parameters = [parameter.detach() for parameter in parameters]
        self._owners: list[tuple[Any, Any, Tensor]] = [
            (optim.optim_objs[parameter], torch_optimizer(optim, parameter), parameter) for parameter in parameters
        ]
        self._states: list[dict[str, Any]] = [owner.state[parameter] for _, owner, parameter in self._owners]
        self._options = [owner.param_groups[0] for _, owner, _ in self._owners]
        self._methods = [_METHODS[type(owner)] for _, owner, _ in self._owners]
        pairs = [(state, method.moments) for state, method in zip(self._states, self._methods, strict=True)]
        self._moments = [[state[names[k]] for state, names in pairs] for k in (0, 1)]
        self._clipped = any(method.clips for method in self._methods)
        self._whole = [state for state in self._states if isinstance(state["step"], int)]
        self._steps = [
            torch.tensor(float(state["step"])) if isinstance(state["step"], int) else state["step"]
            for state in self._states
        ]

    def is_current(self) -> bool:
        """Return whether the optimisers and their states are unchanged."""
        return all(
            self._optim.optim_objs.get(parameter) is own
            and owner.param_groups[0] is options
            and owner.state.get(parameter) is state
            for (own, owner, parameter), state, options in zip(self._owners, self._states, self._options, strict=True)
        )

    def step(self) -> None:
        torch._foreach_add_(self._steps, 1.0)
        for state in self._whole:
            state["step"] += 1
        rates = [
            method.rates(options, state["step"])
            for method, options, state in zip(self._methods, self._options, self._states, strict=True)
        ]
        if self._clipped:
            for gradient, options in zip(self._gradients, self._options, strict=True):
                gradient.clamp_(-options["clip_norm"], options["clip_norm"])
        first, second = self._moments
        columns: Any = self._parameters, self._gradients, first, second, [], self._steps
        if all(other == rates[0] for other in rates):
            _adam(columns, rates[0])
            return
        for k, own in enumerate(rates):
            _adam(tuple(column[k : k + 1] for column in columns), own)


def _adam(columns: Any, rates: _Rates) -> None:
    lr, beta1, beta2, weight_decay, eps = rates
    torch._fused_adam_(
        *columns,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _fits(optim: PyroOptim, parameter: Tensor) -> bool:
    """Return whether the next step of a parameter is one of Adam that can be joined with others."""
    owner: Any = torch_optimizer(optim, parameter)
    method = _METHODS.get(type(owner))
    if method is None or type(optim).__call__ not in _CALLS or optim.grad_clip.get(parameter) is not None:
        return False
    if len(owner.param_groups) != 1 or not owner.state.get(parameter) or parameter.device.type != "cpu":
        return False
    if owner._optimizer_step_pre_hooks or owner._optimizer_step_post_hooks:
        return False
    options = owner.param_groups[0]
    return isinstance(options["lr"], int | float) and method.fits(owner, options, parameter)


def _is_plain(_: Any, options: dict[str, Any], __: Tensor) -> bool:
    unusual = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")
    return not any(options.get(name) for name in unusual)


def _is_in_flat_space(owner: Any, options: dict[str, Any], parameter: Tensor) -> bool:
    return isinstance(owner._manifolds.get(parameter), Euclidean)


def _rates(options: dict[str, Any], count: Any) -> _Rates:
    beta1, beta2 = options["betas"]
    return _Rates(options["lr"], beta1, beta2, options.get("weight_decay", 0.0), options["eps"])


def _rates_of_clipped(options: dict[str, Any], count: Any) -> _Rates:
    r"""Return the rates of Pyro's `ClippedAdam`, which adds ε to $\sqrt V$, not to $\sqrt{V / (1 - \beta_2^t)}$."""
    options["lr"] *= options["lrd"]
    rates = _rates(options, count)
    return rates._replace(eps=rates.eps / math.sqrt(1 - rates.beta2**count))


_OF_TORCH = "exp_avg", "exp_avg_sq"
_METHODS: dict[type, _Method] = {
    Adam: _Method(_OF_TORCH, _is_plain, _rates),
    ClippedAdam: _Method(
        _OF_TORCH, lambda owner, options, parameter: not options["centered_variance"], _rates_of_clipped, clips=True
    ),
    TorchRiemannianAdam: _Method(("momentum", "mean_square"), _is_in_flat_space, _rates),
}
