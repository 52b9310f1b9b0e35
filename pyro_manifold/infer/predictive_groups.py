"""Prior and posterior predictive draws of a run, for its export to ArviZ in one call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_manifold.density import (
    Program,
    StartInSupport,
    has_data,
    has_no_draws,
    in_minibatches,
    is_deterministic,
    is_latent,
    parts,
)
from pyro_manifold.diagnostics import Node, Posterior, Values, first_draw, without_draws
from pyro_manifold.infer.mcmc import check_positive_integer
from pyro_manifold.infer.predictive import Predictive


def with_draws(posterior: Posterior, options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace ``prior=500`` and ``posterior_predictive=True`` among the options of an export by draws.

    Args:
        posterior: draws with their model.
        options: of `pyro_manifold.diagnostics.to_inferencedata`.

    Raises:
        ValueError: if the model cannot be run for these draws, with the reason.
    """
    found = dict(options)
    prior, predictive = found.get("prior"), found.get("posterior_predictive")
    if isinstance(predictive, bool):
        found["posterior_predictive"] = posterior_predictive(posterior) if predictive else None
    if prior is not None and not isinstance(prior, Mapping):
        check_positive_integer(prior=prior)
        found["prior"] = prior_draws(posterior, prior)
    return found


def posterior_predictive(posterior: Posterior) -> Values:
    """Draw the observed sites for each draw, in the shape of the data: ``{site: (chains · draws, ...)}``."""
    program, nodes = _sites(posterior, "posterior_predictive=True")
    samples = posterior.flat
    with torch.no_grad(), pyro.validation_enabled(False):
        missing = without_draws(program, first_draw(samples))
    dropped = [name for name, site in missing.items() if not site["fn"].has_enumerate_support]
    if dropped:
        raise ValueError(
            f"posterior_predictive=True: there are no draws of {dropped}, which save_params leaves out: keep them."
        )
    observed = [name for name, site in nodes.items() if has_data(site)]
    if not observed:
        raise ValueError("posterior_predictive=True: the model has no observed site: leave posterior_predictive out.")
    return _draw(program, nodes, observed, {"posterior_samples": samples}, len(next(iter(samples.values()))))


def prior_draws(posterior: Posterior, count: int) -> Values:
    """Draw all sites from the prior, observed ones too: ``{site: (count, ...)}``."""
    program, nodes = _sites(posterior, f"prior={count}")
    flat = [name for name, site in nodes.items() if is_latent(site) and any(map(has_no_draws, parts(site["fn"])))]
    if flat:
        raise ValueError(
            f"prior={count}: {flat} cannot be drawn, as under an improper prior: leave prior out, or give the sites "
            "proper priors."
        )
    factors = [name for name, site in nodes.items() if isinstance(site["fn"], pyro.distributions.Unit)]
    if factors:
        warnings.warn(
            f"prior={count}: the draws are those of the model without the pyro.factor {factors}; if they belong to the "
            "prior, sample it by MCMC without data, and pass its draws.",
            stacklevel=4,
        )
    kept = [name for name, site in nodes.items() if has_data(site) or is_latent(site) or is_deterministic(site)]
    return _draw(program, nodes, kept, {"num_samples": count}, count)


def _sites(posterior: Posterior, option: str) -> tuple[Program, dict[str, Node]]:
    """Return the model of a posterior and its sites; raise ValueError if it cannot be run again on all data."""
    program = posterior.program
    if program is None:
        raise ValueError(f"{option}: there is no model, as with a potential_fn: pass draws, {{site: tensor}}.")
    try:
        program.check_has_arguments()
    except ValueError as error:
        raise ValueError(f"{option}: {error}: pass draws of Predictive on all data, {{site: tensor}}.") from None
    with torch.no_grad(), pyro.validation_enabled(False):
        trace = program.handled(StartInSupport()).trace()
    nodes = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    parts = [name for name, site in nodes.items() if in_minibatches(site)]
    if parts:
        raise ValueError(
            f"{option}: {parts} are in a plate that takes another subsample at each call: pass draws of Predictive, "
            "with a model whose plate has all elements."
        )
    return program, nodes


def _draw(program: Program, nodes: Mapping[str, Node], kept: list[str], options: dict[str, Any], count: int) -> Values:
    """Draw sites of the model without its data, all draws at once if the model allows it, in the shapes of one run."""
    free = poutine.uncondition(program.model)
    try:
        found = Predictive(free, **options, return_sites=kept, parallel=True)(*program.args, **program.kwargs)
    except ValueError:  # it is not written for all draws at once
        found = Predictive(free, **options, return_sites=kept)(*program.args, **program.kwargs)
    return {name: _shaped(found[name].detach(), nodes[name]["value"], count) for name in kept if name in found}


def _shaped(draws: Tensor, value: Any, count: int) -> Tensor:
    """Return draws in the shape of a site; Pyro's have dimensions of size 1 for plates that the site is not in."""
    shape = torch.as_tensor(value).shape
    return draws.reshape(count, *shape) if draws.numel() == count * shape.numel() else draws
