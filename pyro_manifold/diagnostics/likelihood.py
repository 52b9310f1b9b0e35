"""Pointwise log likelihood: that of each observation under each draw."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_manifold.density import Program, has_data, in_minibatches
from pyro_manifold.diagnostics.marginal_likelihood import MarginalLikelihood
from pyro_manifold.diagnostics.observations import are_observations, is_factor
from pyro_manifold.diagnostics.replay import (
    Node,
    Values,
    first_and_last_draw,
    first_draw,
    moved,
    over_draws,
    without_draws,
)


class PointwiseLikelihood(NamedTuple):
    """Log likelihood of each entry of the observed sites, and which entries are observations.

    Attributes:
        values: ``{observed site: (draws, ...)}``, 0 where masked.
        observed: ``{observed site: (...)}``, False for entries that are masked.
    """

    values: Values
    observed: Values


def observed_values(program: Program, samples: Mapping[str, Tensor]) -> Values:
    """Return the data of a model, ``{observed site: tensor}``.

    Data that come in minibatches are left out, and observed values that are functions of the draws.

    Args:
        program: a Pyro model with its arguments.
        samples: ``{site: (draws, ...)}``.
    """
    draws = first_and_last_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes, of_draws = program.trace(draws[0]).nodes, moved(program, draws)
    whole = {
        name: site
        for name, site in nodes.items()
        if has_data(site) and not in_minibatches(site) and name not in {*of_draws, *samples}
    }
    return {name: torch.as_tensor(site["value"]).detach() for name, site in whole.items()}


def pointwise_log_likelihood(program: Program, samples: Mapping[str, Tensor]) -> Values:
    r"""Compute $\log p(y_i \mid \theta)$ for each observation and draw: 0 if masked, scales left out.

    Discrete sites that were summed out are summed out here too, $\log \sum_z p(z \mid \theta)\, p(y_i \mid z,
    \theta)$: see `MarginalLikelihood` for the definition of an observation then, and for observations that have no
    likelihood of their own, which are left out with a warning. The model is traced once and vectorised over draws;
    where that is not possible it is run draw by draw.

    Args:
        program: a Pyro model with its arguments.
        samples: ``{site: (draws, ...)}``, a value for each latent site that is not discrete.

    Returns:
        ``{observed site: (draws, ...)}``.

    Raises:
        ValueError: if ``save_params`` leaves out a latent site, or data come in minibatches.
    """
    return pointwise_likelihood(program, samples).values


def pointwise_likelihood(program: Program, samples: Mapping[str, Tensor]) -> PointwiseLikelihood:
    """Compute `pointwise_log_likelihood`, and which of its entries are observations, by the masks of the first draw."""
    first = first_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        missing = without_draws(program, first)
        parts = [name for name, site in program.trace(first).nodes.items() if has_data(site) and in_minibatches(site)]
        computed = _without_density(program, samples)
    if parts:
        raise ValueError(f"{parts} are observed in minibatches, which differ between runs of the model")
    dropped = [name for name, site in missing.items() if not site["fn"].has_enumerate_support]
    if dropped:
        raise ValueError(f"there are no draws of {dropped}, which save_params leaves out")
    if missing:
        marginal = MarginalLikelihood(program, first, list(missing))
        return PointwiseLikelihood(over_draws(marginal, samples), marginal.observed)

    def sites_with_data(values: Values) -> dict[str, Node]:
        trace = program.trace(values)
        trace.compute_log_prob()
        apart = {*samples, *computed}
        return {name: site for name, site in trace.nodes.items() if has_data(site) and name not in apart}

    def of_one_draw(values: Values) -> Values:
        sites = sites_with_data(values)
        return {name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]) for name, site in sites.items()}

    with torch.no_grad(), pyro.validation_enabled(False):
        observed = {name: are_observations(site) for name, site in sites_with_data(first).items()}
    return PointwiseLikelihood(over_draws(of_one_draw, samples), observed)


def _without_density(program: Program, samples: Mapping[str, Tensor]) -> list[str]:
    """Return the sites that a handler has made functions of the draws, and masked."""
    draws = first_and_last_draw(samples)
    trace = program.trace(draws[0])
    trace.compute_log_prob()
    return [name for name in moved(program, draws) if not trace.nodes[name]["log_prob"].any()]


def warn_of_factors(program: Program, samples: Mapping[str, Tensor], remedy: str) -> None:
    """Warn about terms of the density that are attached to no data, such as `pyro.factor`, and so in no likelihood."""
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes = program.trace(first_draw(samples)).nodes
    names = [name for name, site in nodes.items() if is_factor(site)]
    if names:
        warnings.warn(
            f"The log likelihood leaves out {names}, terms of `pyro.factor` without data, which may be part of the "
            f"prior or of the likelihood: for the likelihood of data write pyro.sample(..., obs=data), {remedy}.",
            stacklevel=4,
        )
