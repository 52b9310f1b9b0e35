"""Stochastic variational inference with Pyro's face and traced gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
from pyro.infer import JitTrace_ELBO, Trace_ELBO
from pyro.infer.elbo import ELBO
from pyro.optim import PyroOptim
from pyro.poutine import runtime

from pyro_manifold.infer.svi.reparametrisation import kind_of
from pyro_manifold.infer.svi.steps import NotTracedError, TracedSteps

_PYROS_OWN = "SVI takes Pyro's own steps, which costs time and nothing else: {reason}."


class SVI(pyro.infer.SVI):
    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        loss: ELBO | Callable[..., Any],
        loss_and_grads: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, guide, optim, loss, loss_and_grads, **kwargs)
        self._elbo = loss
        self._reason = _reason_at_first(guide, loss, loss_and_grads)
        self._steps: TracedSteps | None = None
        self._warned = False

    def step(self, *args: Any, **kwargs: Any) -> float:
        steps = self._traced(args, kwargs)
        if steps is not None:
            try:
                return steps.step()
            except NotTracedError as error:
                self._give_up(str(error))
        found: float = super().step(*args, **kwargs)
        return found

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> float:
        steps = self._traced(args, kwargs)
        found: float = super().evaluate_loss(*args, **kwargs) if steps is None else steps.loss()
        return found

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedSteps | None:
        """Return the traced steps on these arguments; None if Pyro's own are needed."""
        if runtime._PYRO_STACK:  # handlers around the step, which a trace does not see
            return None
        if self._reason is None:
            try:
                if self._steps is None or not self._steps.is_current(self.optim):
                    particles = self._elbo.num_particles
                    self._steps = TracedSteps(self.model, self.guide, self.optim, particles, args, kwargs)
                self._steps.on(args, kwargs)
                return self._steps
            except NotTracedError as error:
                self._reason = str(error)
        self._give_up(self._reason)
        return None

    def _give_up(self, reason: str) -> None:
        self._reason, self._steps = reason, None
        if not self._warned:
            self._warned = True
            warnings.warn(_PYROS_OWN.format(reason=reason), stacklevel=3)


def _reason_at_first(guide: Any, loss: Any, loss_and_grads: Any) -> str | None:
    if type(loss) not in (Trace_ELBO, JitTrace_ELBO):
        name = type(loss).__name__ if isinstance(loss, ELBO) else getattr(loss, "__name__", type(loss).__name__)
        return f"the loss is {name}, and traced ones are those of Trace_ELBO"
    if kind_of(guide) is None:
        return f"the guide is a {type(guide).__name__}, not one of the automatic guides that can be traced"
    return None
