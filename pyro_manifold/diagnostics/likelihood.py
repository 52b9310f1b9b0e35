"""The likelihood of each observation under each draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_manifold.graphs.agreement import FlatFunction
from pyro_manifold.graphs.tracing import trace
from pyro_manifold.graphs.trusted import Trusted

Values = dict[str, Tensor]

_DRAWS_AT_A_TIME = 256
_COMPARED = 3  # draws of each batch


def observed_values(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
    """Values of all observed sites of a model, ``{site: tensor}``."""
    with torch.no_grad(), pyro.validation_enabled(False):
        trace = poutine.block(poutine.trace(model).get_trace)(*args, **kwargs)
    return {name: torch.as_tensor(site["value"]).detach() for name, site in _observed(trace).items()}


def pointwise_log_likelihood(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], samples: Mapping[str, Tensor]
) -> Values:
    r""":math:`\log p(y_i \mid \theta)` for each observation and draw: 0 where masked, scales left out.

    The model is traced once and vectorised over draws; where that is not possible it is run draw by draw.

    Args:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        samples: ``{site: (draws, ...)}``, a value for each latent site.

    Returns:
        ``{observed site: (draws, ...)}``.

    Raises:
        ValueError: if a latent site has no draws (a discrete one that was summed out, or one left out by
            ``save_params``).
    """
    names = sorted(samples)

    def of_one_draw(*values: Tensor) -> dict[str, Tensor]:
        conditioned = poutine.condition(model, data=dict(zip(names, values, strict=True)))
        trace = poutine.block(poutine.trace(conditioned).get_trace)(*args, **kwargs)
        missing = [name for name, site in trace.nodes.items() if _is_latent(site) and name not in samples]
        if missing:
            raise ValueError(f"there are no draws of {missing}")
        trace.compute_log_prob()
        observed = {name: site for name, site in _observed(trace).items() if name not in samples}
        return {name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]) for name, site in observed.items()}

    columns = [samples[name].detach() for name in names]
    with torch.no_grad(), pyro.validation_enabled(False):
        sites = list(of_one_draw(*[column[0] for column in columns]))
        if not sites:
            return {}
        batches = [_over_draws(of_one_draw, sites, chunk) for chunk in zip(*map(_chunks, columns), strict=True)]
    return {site: torch.cat([batch[site] for batch in batches]) for site in sites}


def _chunks(column: Tensor) -> tuple[Tensor, ...]:
    return column.split(_DRAWS_AT_A_TIME)


def _over_draws(of_one_draw: Callable[..., Values], sites: list[str], columns: tuple[Tensor, ...]) -> Values:
    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        found = of_one_draw(*values)
        return tuple(found[site] for site in sites)

    def draw_by_draw(*columns: Tensor) -> tuple[Tensor, ...]:
        results = [flat(*values) for values in zip(*columns, strict=True)]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def vectorised(_: FlatFunction) -> FlatFunction:
        graph: FlatFunction = torch.vmap(trace(flat, *[column[0].clone() for column in columns]))
        return graph

    likelihoods = Trusted(draw_by_draw, "draw by draw")
    likelihoods.attempt("traced", vectorised, [[column[-_COMPARED:] for column in columns]])
    return dict(zip(sites, likelihoods(*columns), strict=True))


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"] and not poutine.util.site_is_subsample(site)


def _observed(trace: poutine.Trace) -> dict[str, dict[str, Any]]:
    """Observed sites that have data; `pyro.factor` is observed too, but has none."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and site["is_observed"]
        and not poutine.util.site_is_subsample(site)
        and not site["infer"].get("is_auxiliary")
        and not site["infer"].get("_deterministic")
        and not isinstance(site["fn"], pyro.distributions.Unit | pyro.distributions.Delta)
    }
