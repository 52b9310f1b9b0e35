"""Log density of the prior of each latent site under each draw, by which sensitivity to the prior is measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program
from pyro_manifold.diagnostics.replay import Node, Values, first_draw, over_draws, same, without_draws

_MOST_VALUES = 32  # of a discrete site that are tried, to find the priors that depend on it
_DRAWS = 20


def log_prior(program: Program, samples: Mapping[str, Tensor]) -> Values:
    r"""Compute $\log p(\theta_i \mid \text{parents of } \theta_i)$ of each latent site for each draw.

    Densities are those of the distributions as written: of constrained values, and on a manifold with respect to the
    base measure of the distribution. Scales and masks of handlers are in them. Sites whose prior depends on discrete
    sites that were summed out have no density of their own, and are left out with a warning; so are the discrete ones.

    Args:
        program: a Pyro model with its arguments.
        samples: ``{site: (draws, ...)}``, a value for each latent site that is not discrete.

    Returns:
        ``{site: (draws, ...)}``, one number for each element of the plates of a site.

    Raises:
        ValueError: if ``save_params`` leaves out a latent site.
    """
    first = first_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        missing = without_draws(program, first)
        dropped = [name for name, site in missing.items() if not site["fn"].has_enumerate_support]
        if dropped:
            raise ValueError(f"there are no draws of {dropped}, which save_params leaves out")
        discrete = list(_values_of(program, first, missing))

        def of_one_draw(values: Values, fixed: Values) -> Values:
            trace = program.trace({**values, **fixed})
            trace.compute_log_prob()
            nodes = {name: trace.nodes[name] for name in samples if trace.nodes.get(name, {}).get("type") == "sample"}
            return {name: node["log_prob"] for name, node in nodes.items()}

        densities = of_one_draw(first, discrete[0])
        others = [of_one_draw(first, each) for each in discrete[1:]]
        of_mixtures = [name for name, value in densities.items() if not all(same(value, x[name]) for x in others)]
    if of_mixtures:
        warnings.warn(
            f"log_prior leaves out {of_mixtures}, whose priors depend on {list(missing)}, sites that were summed out.",
            stacklevel=4,
        )

    def of_single_sites(values: Values) -> Values:
        return {name: value for name, value in of_one_draw(values, discrete[0]).items() if name not in of_mixtures}

    return over_draws(of_single_sites, samples)


def _values_of(program: Program, first: Values, sites: Mapping[str, Node]) -> Iterator[Values]:
    """Yield the first value of each discrete site, then all values of one after the other, then draws of all."""
    supports = {name: site["fn"].enumerate_support()[:_MOST_VALUES] for name, site in sites.items()}
    lowest = {name: support[0].expand_as(sites[name]["value"]) for name, support in supports.items()}
    yield lowest
    for name, support in supports.items():
        for value in support[1:]:
            yield lowest | {name: value.expand_as(sites[name]["value"])}
    for _ in range(_DRAWS if sites else 0):  # elements of a plate differ in them
        nodes = program.trace(first).nodes
        yield {name: nodes[name]["value"] for name in sites}
