"""Log density of the prior of each latent site under each draw, by which sensitivity to the prior is measured."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program
from pyro_manifold.diagnostics.replay import Node, Values, first_draw, over_draws, same, without_draws


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
        low, high = ({name: _end_of_support(site, k) for name, site in missing.items()} for k in (0, -1))

        def of_one_draw(values: Values, discrete: Values) -> Values:
            trace = program.trace({**values, **discrete})
            trace.compute_log_prob()
            nodes = {name: trace.nodes[name] for name in samples if trace.nodes.get(name, {}).get("type") == "sample"}
            return {name: node["log_prob"] for name, node in nodes.items()}

        ends = [of_one_draw(first, each) for each in (low, high)]
        of_mixtures = [name for name in ends[0] if not same(ends[0][name], ends[1][name])]
    if of_mixtures:
        warnings.warn(
            f"log_prior leaves out {of_mixtures}, whose priors depend on {list(missing)}, sites that were summed out.",
            stacklevel=4,
        )

    def of_single_sites(values: Values) -> Values:
        return {name: value for name, value in of_one_draw(values, low).items() if name not in of_mixtures}

    return over_draws(of_single_sites, samples)


def _end_of_support(site: Node, end: int) -> Tensor:
    """Return the first or the last value of the support of a discrete site, in the shape of its value."""
    values: Tensor = site["fn"].enumerate_support()
    return values[end].expand_as(site["value"])
