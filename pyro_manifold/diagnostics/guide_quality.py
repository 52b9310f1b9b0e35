"""Pareto-smoothed importance sampling diagnostic of a variational guide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine

from pyro_manifold.diagnostics.installed_arviz import pareto_shape


def guide_khat(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, num_draws: int = 1000, **kwargs: Any
) -> float:
    r"""Compute the Pareto shape k̂ of the importance weights of a guide; below 0.7 the guide is near the posterior.

    Draws $x \sim q$ have the weights $p(x, y)/q(x)$. The largest of them follow a generalised Pareto
    distribution of shape k, whose moments of order below 1/k exist. Above 0.7 a few draws carry all of the weight, and
    estimates from the guide, above all its covariance, are unreliable. A mode that the guide does not cover has no
    draws, and k̂ does not show it.

    Args:
        model: a Pyro model without discrete sites that are summed out.
        guide: its guide, fitted.
        *args: arguments of both.
        num_draws: number of draws of the guide, one after the other.
        **kwargs: arguments of both.

    Returns:
        k̂, a number; −∞ if all weights are equal, so that the guide is the posterior.

    Raises:
        ValueError: for fewer than 100 draws, or if no weight is finite.

    Source: Yao, Vehtari, Simpson & Gelman, Yes, but did it work?, ICML 2018; the distribution is fitted by ArviZ.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> _ = pyro.set_rng_seed(0)
        >>> def model():
        ...     pyro.sample("x", dist.StudentT(3.0, 0.0, 1.0))
        >>> def guide():
        ...     pyro.sample("x", dist.Normal(0.0, 1.0))
        >>> guide_khat(model, guide) > 0.2
        True
    """
    if not isinstance(num_draws, int) or num_draws < 100:
        raise ValueError(f"guide_khat: num_draws={num_draws!r}, expected an integer of 100 or more.")
    with torch.no_grad():
        weights = np.array([_log_weight(model, guide, args, kwargs) for _ in range(num_draws)])
    if not np.isfinite(weights).any():
        raise ValueError("guide_khat: the model's density is not finite at any draw of the guide: fit the guide first.")
    return pareto_shape(weights)


def _log_weight(model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return log p/q at a draw of the guide."""
    with poutine.block(), pyro.validation_enabled(False):
        draw = poutine.trace(guide).get_trace(*args, **kwargs)
        replayed = poutine.trace(poutine.replay(model, trace=draw)).get_trace(*args, **kwargs)
        weight = float(replayed.log_prob_sum()) - float(draw.log_prob_sum())
    return weight if math.isfinite(weight) else -math.inf
