"""Pointwise log likelihood: that of each observation under each draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_manifold.density.minibatch import in_minibatches
from pyro_manifold.diagnostics.marginal_likelihood import MarginalLikelihood
from pyro_manifold.diagnostics.replay import Replay, Values, first_and_last_draw, first_draw, has_data, over_draws


def observed_values(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], samples: Mapping[str, Tensor]
) -> Values:
    """Return the data of a model, ``{observed site: tensor}``.

    Data that come in minibatches are left out, and observed values that are functions of the draws.

    Args:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        samples: ``{site: (draws, ...)}``.
    """
    replay, draws = Replay(model, args, kwargs), first_and_last_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes, moved = replay.trace(draws[0]).nodes, replay.moved(draws)
    whole = {
        name: site
        for name, site in nodes.items()
        if has_data(site) and not in_minibatches(site) and name not in {*moved, *samples}
    }
    return {name: torch.as_tensor(site["value"]).detach() for name, site in whole.items()}


def pointwise_log_likelihood(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], samples: Mapping[str, Tensor]
) -> Values:
    r"""Compute $\log p(y_i \mid \theta)$ for each observation and draw: 0 if masked, scales left out.

    Discrete sites that were summed out are summed out here too, $\log \sum_z p(z \mid \theta)\, p(y_i \mid z,
    \theta)$: see `MarginalLikelihood` for the definition of an observation then, and for observations that have no
    likelihood of their own, which are left out with a warning. The model is traced once and vectorised over draws;
    where that is not possible it is run draw by draw.

    Args:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        samples: ``{site: (draws, ...)}``, a value for each latent site that is not discrete.

    Returns:
        ``{observed site: (draws, ...)}``.

    Raises:
        ValueError: if ``save_params`` leaves out a latent site, or data come in minibatches.
    """
    replay = Replay(model, args, kwargs)
    first = first_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        missing = replay.without_draws(first)
        parts = [name for name, site in replay.trace(first).nodes.items() if has_data(site) and in_minibatches(site)]
        computed = _without_density(replay, samples)
    if parts:
        raise ValueError(f"{parts} are observed in minibatches, which differ between runs of the model")
    dropped = [name for name, site in missing.items() if not site["fn"].has_enumerate_support]
    if dropped:
        raise ValueError(f"there are no draws of {dropped}, which save_params leaves out")
    if missing:
        return over_draws(MarginalLikelihood(replay, first, list(missing)), samples)

    def of_one_draw(values: Values) -> Values:
        trace = replay.trace(values)
        trace.compute_log_prob()
        apart = {*samples, *computed}
        observed = {name: site for name, site in trace.nodes.items() if has_data(site) and name not in apart}
        return {name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]) for name, site in observed.items()}

    return over_draws(of_one_draw, samples)


def _without_density(replay: Replay, samples: Mapping[str, Tensor]) -> list[str]:
    """Return the sites that a handler has made functions of the draws, and masked."""
    draws = first_and_last_draw(samples)
    trace = replay.trace(draws[0])
    trace.compute_log_prob()
    return [name for name in replay.moved(draws) if not trace.nodes[name]["log_prob"].any()]
