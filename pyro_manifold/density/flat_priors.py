"""Initial values of sites that have no draws, such as those of `ImproperUniform`: they need the support alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import cache
from typing import Any

import torch
from pyro.distributions import ImproperUniform
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, transform_to

from pyro_manifold.density.supports import parameters

_RADIUS = 2.0  # as Pyro's `init_to_uniform`, NumPyro and Stan


class StartInSupport(Messenger):
    """Handler by which latent sites without draws begin at values that are uniform(-2, 2) in unconstrained space.

    Args:
        names: the sites, which get their values from elsewhere later; all if None.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        super().__init__()
        self._names = names

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"] and (self._names is None or msg["name"] in self._names):
            msg["fn"] = with_start(msg["fn"])


def with_start(distribution: Any) -> Any:
    """Return the distribution with draws to begin at, if it has none of its own: then a copy."""
    if not isinstance(distribution, Distribution):
        return distribution
    if has_no_draws(distribution):
        distribution = copy(distribution)
        distribution.__class__ = _starting(type(distribution))  # type: ignore[arg-type]  # torch gives it a metaclass
        return distribution
    base = getattr(distribution, "base_dist", None)
    own = with_start(base)
    if own is not base:
        distribution = copy(distribution)
        distribution.base_dist = own
    return distribution


def has_no_draws(distribution: Any) -> bool:
    """Return whether a distribution itself, not one that it wraps, cannot be sampled."""
    kind = type(distribution)
    inherited = getattr(kind, "sample", None), getattr(kind, "rsample", None)
    return isinstance(distribution, ImproperUniform) or inherited == (Distribution.sample, Distribution.rsample)


@cache
def _starting(kind: Any) -> type:
    return type(kind.__name__, (kind,), {"sample": _start, "__module__": kind.__module__})


def _start(distribution: Any, sample_shape: Any = ()) -> Tensor:
    transform = transform_to(distribution.support)
    shape = transform.inverse_shape(torch.Size(sample_shape) + distribution.shape())
    like = next((x for x in parameters(distribution.support) if torch.is_tensor(x)), torch.zeros(()))
    like = like if like.is_floating_point() else like.to(torch.get_default_dtype())
    return transform(_RADIUS * (2 * torch.rand(shape, dtype=like.dtype).to(like.device) - 1)).detach()


@contextmanager
def started(guide: Any) -> Iterator[None]:
    """Set up automatic guides with initial values for sites without draws, which Pyro's strategies need.

    Args:
        guide: a guide; only automatic ones that are not yet set up are affected.
    """
    guides = [part for part in guide.modules() if isinstance(part, AutoGuide)] if isinstance(guide, AutoGuide) else []
    with ExitStack() as stack:
        for each in guides:
            if each.prototype_trace is None:
                stack.enter_context(_with_model(each, _started_inside(each.model)))
        yield


def _started_inside(model: Any) -> Any:
    """Apply `StartInSupport` to a guide's model, inside of the handler that asks the guide's strategy for values."""
    applied: tuple[Any, ...] = getattr(getattr(model, "func", None), "args", ())
    if len(applied) == 2 and isinstance(applied[0], InitMessenger):
        handler, inner = applied
        return handler(StartInSupport()(inner))
    return StartInSupport()(model)


@contextmanager
def _with_model(guide: Any, model: Any) -> Iterator[None]:
    before = guide._model
    guide._model = (model,)
    try:
        yield
    finally:
        guide._model = before
