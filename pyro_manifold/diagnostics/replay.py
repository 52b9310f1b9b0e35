"""Runs of a model with the values of each draw, vectorised over draws where possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_manifold.compiled import FlatFunction, vectorise
from pyro_manifold.density import Program, has_data, in_minibatches, is_latent

Values = dict[str, Tensor]
Node = dict[str, Any]

_DRAWS_AT_A_TIME = 256
_COMPARED = 4  # draws of each batch, and two for each of so many sites:
_COMPARED_SITES = 16


def without_draws(program: Program, values: Mapping[str, Tensor]) -> dict[str, Node]:
    """Return the latent sites without values: discrete ones that were summed out, or sites that were not kept."""
    return {name: site for name, site in program.trace(values).nodes.items() if is_latent(site) and name not in values}


def moved(program: Program, draws: list[Values]) -> list[str]:
    """Return the observed sites whose values are functions of the draws, such as ``obs=y - f(x)``."""
    first, *others = [program.trace(draw).nodes for draw in draws]
    observed = [
        name for name, site in first.items() if has_data(site) and not in_minibatches(site) and name not in draws[0]
    ]
    return [
        name
        for name in observed
        for nodes in others
        if not same(*[torch.as_tensor(each[name]["value"]) for each in (first, nodes)])
    ]


def over_draws(
    of_one_draw: Callable[[Values], Values], samples: Mapping[str, Tensor], at_a_time: int = _DRAWS_AT_A_TIME
) -> Values:
    """Evaluate a function of the values of one draw at every draw.

    It is traced once and vectorised over draws; if that is not possible it is called draw by draw.

    Args:
        of_one_draw: ``{site: value}`` to ``{name: tensor}``, the same names and shapes for every draw.
        samples: ``{site: (draws, ...)}``.
        at_a_time: number of draws of one vectorised call.

    Returns:
        ``{name: (draws, ...)}``.
    """
    sites, columns = list(samples), [value.detach() for value in samples.values()]

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(of_one_draw(dict(zip(sites, values, strict=True))).values())

    with torch.no_grad(), pyro.validation_enabled(False):
        names = list(of_one_draw(first_draw(samples)))
        if not names:
            return {}
        chunks = zip(*[column.split(at_a_time) for column in columns], strict=True)
        batches = [_of_a_batch(flat, chunk) for chunk in chunks]
    return {name: torch.cat(parts) for name, parts in zip(names, zip(*batches, strict=True), strict=True)}


def _of_a_batch(flat: FlatFunction, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    rows = _to_compare(columns)
    points = [[column[rows] for column in columns]]
    function = vectorise(flat, columns, points=points, subject=None, folded=False, compared=None)
    return function(*columns)


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal, with NaN equal to itself."""
    return first.shape == second.shape and bool(((first == second) | (first != first) & (second != second)).all())


def _to_compare(columns: tuple[Tensor, ...]) -> list[int]:
    """Return draws to compare: some of the batch, and those where a site is extreme, since models branch there."""
    count = len(columns[0])
    chosen = {(k * (count - 1)) // (_COMPARED - 1) for k in range(_COMPARED)}
    for column in columns[:_COMPARED_SITES]:
        if column.numel():
            entry = column.reshape(count, -1)[:, 0]
            chosen |= {int(entry.argmin()), int(entry.argmax())}
    return sorted(chosen)


def first_and_last_draw(samples: Mapping[str, Tensor]) -> list[Values]:
    """Return the values of the first and of the last draw."""
    return [{name: value[place].detach() for name, value in samples.items()} for place in (0, -1)]


def first_draw(samples: Mapping[str, Tensor]) -> Values:
    """Return the values of the first draw."""
    return {name: value[0].detach() for name, value in samples.items()}
