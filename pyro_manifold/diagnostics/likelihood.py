"""Pointwise log likelihood: that of each observation under each draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_manifold.density import in_minibatches
from pyro_manifold.diagnostics.marginal_likelihood import MarginalLikelihood
from pyro_manifold.diagnostics.observations import are_observations, is_factor
from pyro_manifold.diagnostics.replay import Node, Replay, Values, first_and_last_draw, first_draw, has_data, over_draws


class PointwiseLikelihood(NamedTuple):
    """Log likelihood of each entry of the observed sites, and which entries are observations.

    Attributes:
        values: ``{observed site: (draws, ...)}``, 0 where masked.
        observed: ``{observed site: (...)}``, False for entries that are masked.
    """

    values: Values
    observed: Values


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
    return pointwise_likelihood(model, args, kwargs, samples).values


def pointwise_likelihood(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], samples: Mapping[str, Tensor]
) -> PointwiseLikelihood:
    """Compute `pointwise_log_likelihood`, and which of its entries are observations, by the masks of the first draw."""
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
        marginal = MarginalLikelihood(replay, first, list(missing))
        return PointwiseLikelihood(over_draws(marginal, samples), marginal.observed)

    def sites_with_data(values: Values) -> dict[str, Node]:
        trace = replay.trace(values)
        trace.compute_log_prob()
        apart = {*samples, *computed}
        return {name: site for name, site in trace.nodes.items() if has_data(site) and name not in apart}

    def of_one_draw(values: Values) -> Values:
        sites = sites_with_data(values)
        return {name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]) for name, site in sites.items()}

    with torch.no_grad(), pyro.validation_enabled(False):
        observed = {name: are_observations(site) for name, site in sites_with_data(first).items()}
    return PointwiseLikelihood(over_draws(of_one_draw, samples), observed)


def _without_density(replay: Replay, samples: Mapping[str, Tensor]) -> list[str]:
    """Return the sites that a handler has made functions of the draws, and masked."""
    draws = first_and_last_draw(samples)
    trace = replay.trace(draws[0])
    trace.compute_log_prob()
    return [name for name in replay.moved(draws) if not trace.nodes[name]["log_prob"].any()]


def warn_of_factors(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], samples: Mapping[str, Tensor], remedy: str
) -> None:
    """Warn about terms of the density that are attached to no data, such as `pyro.factor`, and so in no likelihood."""
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes = Replay(model, args, kwargs).trace(first_draw(samples)).nodes
    names = [name for name, site in nodes.items() if is_factor(site)]
    if names:
        warnings.warn(
            f"The log likelihood leaves out {names}, terms of `pyro.factor` without data, which may be part of the "
            f"prior or of the likelihood: for the likelihood of data write pyro.sample(..., obs=data), {remedy}.",
            stacklevel=4,
        )
