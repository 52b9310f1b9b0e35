"""Values of the sites that are functions of the draws, such as those of `pyro.deterministic`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program, is_deterministic
from pyro_manifold.diagnostics.replay import (
    Node,
    Values,
    first_and_last_draw,
    first_draw,
    moved,
    over_draws,
    same,
    without_draws,
)

_MOST_CONSTANT = 32
_RANDOM = 32  # a dependence on whether two places of a plate are equal is missed with probability 2⁻³²


def deterministic_values(program: Program, samples: Mapping[str, Tensor]) -> Values:
    """Compute the sites that are functions of the sites that were sampled.

    These are the sites of `pyro.deterministic`, those that a handler such as `poutine.reparam` has moved, sites with
    the distribution `Delta`, and observed values that are functions of the draws, as in ``obs=y - f(x)``.

    The model is traced once and vectorised over draws; where that is not possible it is run draw by draw. Sites that
    depend on discrete sites which were summed out have no value: they are left out, with a warning. They are found by
    changing the discrete sites: to each of their values in all elements, and to 32 random assignments.

    Args:
        program: a Pyro model with its arguments.
        samples: ``{site: (draws, ...)}``, a value for each latent site that is not discrete.

    Returns:
        ``{site: (draws, ...)}``; empty for a model without such sites.

    Raises:
        ValueError: if a latent site has no draws because ``save_params`` left it out.
    """
    first = first_draw(samples)
    with torch.no_grad(), pyro.validation_enabled(False):
        nodes = program.trace(first).nodes
        # An observed Delta is another way to write a factor, if its value is not a function of the draws.
        marked = [name for name, site in nodes.items() if is_deterministic(site)]
        names = marked + moved(program, first_and_last_draw(samples))
        points = [name for name in marked if not nodes[name]["infer"].get("_deterministic")]
        if not names:
            return {}
        missing = without_draws(program, first)
        dropped = [name for name, site in missing.items() if not site["fn"].has_enumerate_support]
        if dropped:
            raise ValueError(
                f"the deterministic sites {names} are functions of all sites, but there are no draws of {dropped}, "
                "which save_params leaves out"
            )
        assignments = list(_assignments(missing))
        undefined = _that_depend(names, program, first, assignments) if missing else []
        chance = _that_depend(names, program, first, [assignments[0], assignments[0]])
    if chance:
        warnings.warn(
            f"The deterministic sites {chance} are left out, since their values differ between runs of the model, as "
            "with minibatches.",
            stacklevel=4,
        )
        names = [name for name in names if name not in chance]
    if undefined:
        warnings.warn(
            f"The deterministic sites {undefined} are left out, since they depend on {list(missing)}, which were "
            "summed out.",
            stacklevel=4,
        )

    def of_one_draw(values: Values) -> Values:
        nodes = program.trace({**values, **assignments[0]}).nodes
        return {name: nodes[name]["value"] for name in names if name not in undefined}

    values = over_draws(of_one_draw, samples)
    return {name: value for name, value in values.items() if name not in points or not _is_constant(value)}


def _is_constant(values: Tensor) -> bool:
    return len(values) > 1 and same(values, values[:1].expand_as(values))


def deterministic_by_chain(program: Program, samples: Mapping[str, Tensor], dimensions: int = 2) -> Values:
    """Compute `deterministic_values` at samples with ``dimensions`` leading dimensions."""
    front = next(iter(samples.values())).shape[:dimensions] if samples else ()
    flat = {name: value.flatten(0, dimensions - 1) for name, value in samples.items()}
    values = deterministic_values(program, flat)
    return {name: value.reshape(*front, *value.shape[1:]) for name, value in values.items()}


def _assignments(discrete: Mapping[str, Node]) -> Iterator[Values]:
    """Yield assignments of discrete sites: each of their values in all elements, then random ones."""
    largest = max((len(_support(site)) for site in discrete.values()), default=1)
    for k in range(min(largest, _MOST_CONSTANT)):
        yield {
            name: _support(site)[k % len(_support(site))].expand(site["value"].shape) for name, site in discrete.items()
        }
    generator = torch.Generator().manual_seed(0)
    for _ in range(_RANDOM):
        yield {name: _at_random(site, generator) for name, site in discrete.items()}


def _support(site: Node) -> Tensor:
    """Return the values of one element of a discrete site, ``(count, ...)``."""
    support = site["fn"].enumerate_support(expand=False)
    return support.reshape(len(support), *site["fn"].event_shape)


def _at_random(site: Node, generator: torch.Generator) -> Tensor:
    support = _support(site)
    return support[torch.randint(len(support), site["fn"].batch_shape, generator=generator).to(support.device)]


def _that_depend(names: list[str], program: Program, first: Values, assignments: list[Values]) -> list[str]:
    """Return the sites whose value is not the same for all assignments of the discrete sites."""
    found = [program.trace({**first, **assignment}).nodes for assignment in assignments]
    return [name for name in names if not all(same(nodes[name]["value"], found[0][name]["value"]) for nodes in found)]
