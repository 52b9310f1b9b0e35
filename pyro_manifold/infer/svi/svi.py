"""Stochastic variational inference with Pyro's interface and traced gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import JitTrace_ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.infer.elbo import ELBO
from pyro.optim import PyroOptim
from pyro.poutine import runtime
from torch import Tensor

from pyro_manifold.density import refuse_for_guides, started
from pyro_manifold.infer.svi.components import warn_of_components
from pyro_manifold.infer.svi.reparametrisation import kind_of
from pyro_manifold.infer.svi.schedule import LearningRateSchedule, Schedule, StepSizes, Until, check_run
from pyro_manifold.infer.svi.steps import NotTracedError, TracedSteps

_PYROS_OWN = "SVI falls back to Pyro's own steps: {reason}."


class SVI(pyro.infer.SVI):
    r"""Stochastic variational inference as in Pyro, with one call of native code per step if guide and loss allow it.

    A step estimates the gradient of the ELBO by the guide's parameters λ from K particles
    $\theta_k = T_\lambda(z_k)$, z standard normal,

    $$
    \frac{1}{K} \sum_k \Big[\nabla_\theta \log p(x, \theta_k)\, \frac{\partial T_\lambda(z_k)}{\partial \lambda}
    + s_k\Big],
    $$

    with an unbiased $s_k$ of the gradient of the entropy, and then calls the optimiser. Log density, guide and
    both derivatives are traced once; the graph is compiled to C if a C compiler is available, its operators are
    supported, and the steps so far outweigh the compile time. Noise, batch, and parameters are inputs. The graph is
    compared with the model when it is made, after 1, 4, 16 and so on steps, and every 4,096.

    Steps are traced for ``loss=Trace_ELBO(...)`` with the guides of `pyro_manifold.infer.autoguide` and Pyro's
    `AutoNormal`, `AutoDiagonalNormal`, `AutoMultivariateNormal`, `AutoLowRankMultivariateNormal`, `AutoIAFNormal` and
    `AutoNormalizingFlow`, for models with continuous latent sites and without parameters in the model. Otherwise a step
    is Pyro's own, and one warning names the reason. Parameters are in Pyro's param store in both cases. Optimisers are
    Pyro's or those of `pyro_manifold.optim`; `Adam`, `ClippedAdam` and `RiemannianAdam` update all parameters by one
    operator, and keep their state in the optimiser.

    Differences from Pyro: particles share the minibatch of a step; a plate with a subsample takes its elements in a
    random order, all of them in each epoch, as those of `OSGHMC`; the entropy of Gaussian guides is that of the guide's
    ``path_derivative``, in closed form for Pyro's guides. Data that change between steps must be arguments of ``step``:
    changed tensors of the same shapes have no cost, while other values and new shapes are traced again.

    Args:
        model: a Pyro model.
        guide: a guide.
        optim: a `PyroOptim`.
        loss: an ELBO, or a function of model, guide and arguments.
        loss_and_grads: as in Pyro.

    Raises:
        ValueError: for arguments of another kind.

    Source: Kucukelbir, Tran, Ranganath, Gelman & Blei, Automatic differentiation variational inference, JMLR 18 (2017);
    Roeder, Wu & Duvenaud, arXiv 1703.09194, for the path derivative.

    Examples:
        >>> import pyro.distributions as dist
        >>> from pyro.infer import Trace_ELBO
        >>> from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
        >>> from pyro_manifold.optim import RiemannianAdam
        >>> def model(y):
        ...     x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        ...     pyro.sample("y", dist.Normal(x.sum(-1), 0.1), obs=y)
        >>> guide = AutoStiefelLowRankMultivariateNormal(model, rank=1)
        >>> svi = SVI(model, guide, RiemannianAdam({"lr": 0.03}), Trace_ELBO(num_particles=8))
        >>> losses = svi.run(300, torch.tensor(2.0))
        >>> losses.shape, bool(losses[-50:].mean() < losses[:50].mean())
        (torch.Size([300]), True)

    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        loss: ELBO | Callable[..., Any],
        loss_and_grads: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _check(model, guide, optim, loss)
        super().__init__(model, guide, optim, loss, loss_and_grads, **kwargs)
        self._elbo: Any = loss
        self._reason = _reason_at_first(guide, loss)
        self._steps: TracedSteps | None = None
        self._planned, self._warned, self._begun, self._checked = 0, False, False, False

    @property
    def backend(self) -> str:
        """Form of the latest steps: ``"pyro"``, ``"traced"`` (a graph of tensors) or ``"native"``."""
        return "pyro" if self._steps is None else self._steps.backend

    def step(self, *args: Any, **kwargs: Any) -> float:
        """Take a step, and return the estimate of the loss before it, minus the ELBO.

        Args:
            *args: arguments of model and guide.
            **kwargs: the same, by name.
        """
        if self._checked:
            return self._step(args, kwargs)
        with started(self.guide):
            found = self._step(args, kwargs)
        if isinstance(self.guide, AutoGuide) and self.guide.prototype_trace is not None:
            refuse_for_guides(partial(self.model, *args, **kwargs), self.guide.prototype_trace.nodes)
        self._checked = True
        return found

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        steps = self._traced(args, kwargs)
        found: float | None = None
        if steps is not None:
            try:
                found = steps.step(self._planned)
            except NotTracedError as error:
                self._give_up(str(error))
        if found is None:
            found = super().step(*args, **kwargs)
        if not self._begun:  # guide and optimiser know their parameters now
            self._begun = True
            warn_of_components(self.guide, self.optim)
        return found

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> float:
        """Return an estimate of the loss, with the number of particles of a step.

        Args:
            *args: arguments of model and guide.
            **kwargs: the same, by name.
        """
        with started(self.guide):
            steps = self._traced(args, kwargs)
        if steps is not None:
            try:
                return steps.loss()
            except NotTracedError as error:
                self._give_up(str(error))
        with started(self.guide):
            found: float = super().evaluate_loss(*args, **kwargs)
        return found

    def run(
        self,
        num_steps: int,
        *args: Any,
        schedule: Schedule = "cosine",
        until: Until | None = None,
        **kwargs: Any,
    ) -> Tensor:
        r"""Take many steps, and return the losses, ``(steps,)``.

        With ``"cosine"`` the learning rate of step t of T is η(1 + cos(πt/T))/2, with η that of the optimiser: large
        steps until the parameters are near the optimum, and small ones to average the noise of the gradient. The same η
        suits short and long runs. The initial learning rates are restored at the end.

        ``until="plateau"`` keeps the learning rate constant until the losses reach a plateau, and then decreases it to
        zero over half as many steps; ``num_steps`` is then the maximum. A plateau is reached if, at two successive
        tests after 400, 600, 900 and so on steps, the mean of the last quarter of the losses is not below that of the
        quarter before by more than its standard error.

        Args:
            num_steps: number of steps, ≥ 1.
            *args: arguments of model and guide.
            schedule: ``"cosine"``, or ``"constant"`` for the optimiser's own learning rate.
            until: ``"plateau"``, or None to take all steps.
            **kwargs: keyword arguments of model and guide.

        Raises:
            ValueError: for arguments out of range, and for an optimiser with its own schedule.
        """
        check_run(self.optim, num_steps, schedule, until)
        course, sizes = LearningRateSchedule(num_steps, schedule, until), StepSizes(self.optim)
        losses: list[float] = []
        self._planned = num_steps
        if self._steps is not None:
            self._steps.compare_next()
        try:
            while len(losses) < course.last:
                sizes.scale(course.factor(len(losses)))
                losses.append(self.step(*args, **kwargs))
                course.check(losses)
        finally:
            sizes.restore()
            self._planned = 0
        return torch.tensor(losses)

    def __getstate__(self) -> dict[str, Any]:
        # Graphs and native code are rebuilt by the next step.
        return {**self.__dict__, "_steps": None}

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedSteps | None:
        """Return the traced steps on these arguments; None if Pyro's own are needed."""
        if runtime._PYRO_STACK:  # handlers around the step, which are not part of a trace
            return None
        if self._reason is None:
            try:
                particles = self._elbo.num_particles
                if self._steps is None or not self._steps.is_current(self.optim, particles):
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
            warnings.warn(_PYROS_OWN.format(reason=reason), stacklevel=4)


def _reason_at_first(guide: Any, loss: Any) -> str | None:
    """Return the reason for which steps cannot be traced, as a clause; None if there is none so far."""
    if type(loss) not in (Trace_ELBO, JitTrace_ELBO):
        name = type(loss).__name__ if isinstance(loss, ELBO) else getattr(loss, "__name__", type(loss).__name__)
        return f"the loss is {name}, and only Trace_ELBO is traced"
    if kind_of(guide) is None:
        name = getattr(guide, "__name__", type(guide).__name__)
        return f"the guide is {name}, which is not a supported automatic guide"
    if pyro.settings.get("module_local_params"):
        return "the setting module_local_params excludes parameters from the param store"
    return None


def _check(model: object, guide: object, optim: object, loss: object) -> None:
    for name, value in (("model", model), ("guide", guide)):
        if not callable(value) or isinstance(value, type):
            hint = "" if not isinstance(value, type) else "; call it with the model first"
            raise ValueError(f"SVI: {name}={value!r:.60}, expected a function with Pyro statements{hint}.")
    if not isinstance(optim, PyroOptim):
        raise ValueError(
            f"SVI: optim={optim!r:.60}, expected an optimiser like pyro.optim.Adam({{'lr': 0.01}}) or "
            "pyro_manifold.optim.RiemannianAdam({'lr': 0.03})."
        )
    if isinstance(loss, type) or not (isinstance(loss, ELBO) or callable(loss)):
        raise ValueError(f"SVI: loss={loss!r:.60}, expected an ELBO like Trace_ELBO(num_particles=8).")
    if isinstance(loss, ELBO) and loss.num_particles < 1:
        raise ValueError(f"SVI: loss has num_particles={loss.num_particles}, expected at least 1.")
