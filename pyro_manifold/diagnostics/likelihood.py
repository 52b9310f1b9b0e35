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
from pyro_manifold.diagnostics.replay import Replay, Values, first_draw, has_data, over_draws


def observed_values(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
    """Return the values of all observed sites of a model, ``{site: tensor}``, without data that come in minibatches."""
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes = Replay(model, args, kwargs).trace({}).nodes
    whole = {name: site for name, site in nodes.items() if has_data(site) and not in_minibatches(site)}
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
        observed = {name: site for name, site in trace.nodes.items() if has_data(site) and name not in samples}
        return {name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]) for name, site in observed.items()}

    return over_draws(of_one_draw, samples)
