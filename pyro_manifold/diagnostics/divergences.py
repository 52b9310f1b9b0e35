"""Sentences on divergences: the scale that is near 0 there, and the form of the model that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution, constraints
from torch import Tensor

from pyro_manifold.density import Program, is_deterministic, parts
from pyro_manifold.diagnostics.replay import Node, Values, first_draw, over_draws

_MOST_DRAWS = 500  # of divergences, and of all draws
_CERTAIN = 1.645  # standard errors of a mean rank
_LARGEST_RANK = 1 / 3

DIVERGENCES = (
    "Divergences are steps that are too long where the density is steep: that part of the posterior, such as a tail, "
    "may be missing from the draws, even if R-hat is good. See whether the priors conflict with the data{scales}; then "
    "raise target_accept_prob of the kernel, or lower step_size if it is fixed."
)


class Scale(NamedTuple):
    """A scale of a site that other sites set.

    Attributes:
        site: the site.
        by: the sites on which its scale depends.
        is_data: whether the site is observed.
        is_plain: whether the site is a location and a scale times a number or a vector of numbers, as a Normal one is.
    """

    site: str
    by: tuple[str, ...]
    is_data: bool
    is_plain: bool


def divergence_advice(program: Program | None, samples: Mapping[str, Tensor], diverging: Tensor | None) -> str:
    """Return what to do about divergences: the remedy for a scale if it is near 0 where they are, else what may help.

    Each scale of the model that depends on a site is compared at divergences and at all draws: it is near 0 if its mean
    rank at divergences is below a third, by more than chance.

    Args:
        program: a Pyro model with its arguments, if known.
        samples: ``{site: (chains, draws, ...)}``.
        diverging: whether draws are divergences, ``(chains, draws)``, if known.
    """
    try:
        scales = [] if program is None else scales_of_model(program, samples)
        ranks = {} if program is None else _ranks(scales, program, samples, diverging)
    except Exception:  # a model can fail in any way; the advice is then the general one
        scales, ranks = [], {}
    if ranks:
        lowest = min(ranks, key=lambda scale: ranks[scale])
        return _remedy(lowest, ranks[lowest])
    named = [f"that of `{each.site}` depends on {_quoted(each.by)}" for each in scales if not each.is_data]
    may_be = f" or a scale is near 0 ({named[0]}), where the non-centred form may help" if named else ""
    return DIVERGENCES.format(scales=may_be or " or a scale is near 0")


def scales_of_model(program: Program, samples: Mapping[str, Tensor]) -> list[Scale]:
    """Return the scales of the sites of a model that depend on latent sites, in the order of the model."""
    first = first_draw({name: x.flatten(0, 1) for name, x in samples.items()})
    values = {name: x.clone().requires_grad_() if x.is_floating_point() else x for name, x in first.items()}
    with torch.enable_grad(), pyro.validation_enabled(False):
        nodes = program.trace(values).nodes
    inputs = {name: x for name, x in values.items() if x.requires_grad}
    found = []
    for name, site in nodes.items():
        scale = _scale(site)
        if scale is None or not scale.requires_grad:
            continue
        gradients = torch.autograd.grad(scale.sum(), list(inputs.values()), allow_unused=True, retain_graph=True)
        by = [each for each, slope in zip(inputs, gradients, strict=True) if slope is not None and bool(slope.any())]
        if by:
            found.append(Scale(name, tuple(by), name not in samples, _is_plain(site)))
    return found


def _scale(site: Node) -> Tensor | None:
    """Return the scale of the distribution of a site; None if it is not a family of locations and scales."""
    if site["type"] != "sample" or is_deterministic(site):
        return None
    for part in parts(site["fn"]):
        if hasattr(part, "loc") and hasattr(part, "scale"):
            return torch.as_tensor(part.scale)
        if hasattr(part, "loc") and hasattr(part, "scale_tril"):
            return part.scale_tril.diagonal(dim1=-2, dim2=-1)
    return None


def _is_plain(site: Node) -> bool:
    for part in parts(site["fn"]):
        if not isinstance(part, dist.Independent | ExpandedDistribution | MaskedDistribution):
            return hasattr(part, "scale") and part.support is constraints.real
    return False


def _ranks(
    scales: list[Scale], program: Program, samples: Mapping[str, Tensor], diverging: Tensor | None
) -> dict[Scale, float]:
    """Return the mean rank, between 0 and 1, that scales have at divergences among all draws, where it is low."""
    if diverging is None or not scales or not bool(diverging.any()):
        return {}
    flat = {name: x.flatten(0, 1) for name, x in samples.items()}
    at = diverging.flatten().nonzero().squeeze(-1)
    of_all = torch.arange(diverging.numel())
    at, of_all = (x[torch.linspace(0, len(x) - 1, min(len(x), _MOST_DRAWS)).long()] for x in (at, of_all))
    chosen = torch.cat([at, of_all])

    def smallest(values: Values) -> Values:
        nodes = program.trace(values).nodes
        return {each.site: _scale(nodes[each.site]).amin() for each in scales}  # type: ignore[union-attr]

    found = over_draws(smallest, {name: x[chosen.to(x.device)] for name, x in flat.items()})
    bound = min(_LARGEST_RANK, 0.5 - _CERTAIN / (12 * len(at)) ** 0.5)
    ranks = {each: _mean_rank(found[each.site][: len(at)], found[each.site][len(at) :]) for each in scales}
    return {each: rank for each, rank in ranks.items() if rank < bound}


def _mean_rank(values: Tensor, among: Tensor) -> float:
    below, ties = among < values.unsqueeze(-1), among == values.unsqueeze(-1)
    return float((below.double() + 0.5 * ties.double()).mean())


def _remedy(scale: Scale, rank: float) -> str:
    data = "observed site" if scale.is_data else "site"
    share = f"{100 * (1 - rank):.0f} %" if rank > 0.005 else "more than 99 %"
    found = (
        f"At divergences the scale of the {data} `{scale.site}`, which {_quoted(scale.by)} "
        f"{'sets' if len(scale.by) == 1 else 'set'}, is near 0: on average below that of {share} of the draws. "
        "Smaller values, and tails that go with them, may be missing from the draws, even if R-hat is good. "
    )
    if scale.is_data:
        return found + (
            f"Give {_quoted(scale.by)} a prior that avoids a scale of 0, and see whether the model fits some data "
            "exactly; then raise target_accept_prob of the kernel."
        )
    by_handler = (
        f': poutine.reparam(model, {{"{scale.site}": LocScaleReparam(0.0)}}) with pyro.infer.reparam does so'
        if scale.is_plain
        else ""
    )
    return found + (
        f"Write `{scale.site}` in the non-centred form, as a function such as location + scale * raw of a site raw "
        f"that has location 0 and scale 1{by_handler}. A higher target_accept_prob only moves the edge."
    )


def _quoted(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{name}`" for name in names)
