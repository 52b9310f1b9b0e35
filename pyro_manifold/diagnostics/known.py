"""Identified quantities of a posterior whose columns are known only up to signs, order or rotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.diagnostics.invariants import Invariance, invariants
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry


def known_quantities(draws: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> dict[str, Tensor]:
    """Replace sites that have a symmetry by functionals that it does not change; keep all other sites.

    The functionals are the `invariants` of the product that the sentence of `Symmetry` names. If more than three sites
    change together they are the invariants of each of them, and for sites that are reordered with the columns their
    sorted values. Of angles they are cos and sin.

    Args:
        draws: ``{site: (chains, draws, ...)}``; sites that were not kept are missing.
        symmetries: symmetries of the posterior.

    Returns:
        ``{name: (chains, draws, ...)}``.

    Examples:
        >>> import torch
        >>> draws = {"U": torch.randn(2, 5, 3, 2), "scale": torch.ones(2, 5)}
        >>> sorted(known_quantities(draws, [Symmetry("rotations", ("U",))]))
        ['U, row products', 'U, squared row norms', 'scale']
    """
    found = dict(draws)
    for symmetry in symmetries:
        sites = [name for name in symmetry.names if name in draws]
        for name in sites:
            del found[name]
        if symmetry.kind == "turns":
            found |= {f"{name}, cos and sin": torch.stack([draws[name].cos(), draws[name].sin()], -1) for name in sites}
            continue
        product = _of_product(draws, symmetry) if len(sites) == len(symmetry.names) else None
        found |= product if product is not None else _of_each(draws, symmetry)
    return found


def _of_product(draws: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, Tensor] | None:
    """Return the invariants of the product of the sites; None if there are not one or two companions that form one."""
    first, *others = symmetry.sites
    if len(others) > 1 or len(symmetry.scales) > 1 or not (others or symmetry.scales):
        return None
    if set(symmetry.scales) & set(dict(symmetry.axes)):
        return None
    right = symmetry.rows(others[0], draws[others[0]], 2) if others else None
    scales = draws[symmetry.scales[0]] if symmetry.scales else None
    if (*symmetry.scales,) in symmetry.positive:  # their signs change alone
        scales = None if scales is None else scales.abs()
    try:
        values = invariants(symmetry.rows(first, draws[first], 2), scales=scales, right=right)
    except ValueError:
        return None
    names = ", ".join(symmetry.names)
    found = {f"{names}, {name}": value for name, value in values.items()}
    # Their order is identified, which the product does not show.
    return found | {
        f"{name}, absolute": draws[name].abs() for name in symmetry.scales if name not in symmetry.reordered
    }


def _of_each(draws: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, Tensor]:
    kind: Invariance = symmetry.kind  # type: ignore[assignment]
    found: dict[str, Tensor] = {}
    for name in symmetry.sites:
        if name not in draws:
            continue
        found_of_site = invariants(symmetry.rows(name, draws[name], 2), kind)
        found |= {f"{name}, {key}": value for key, value in found_of_site.items()}
    positive = {name for name, *_ in symmetry.positive}
    for name in symmetry.scales:
        if name in draws:
            values = symmetry.columns_last(name, draws[name].abs() if name in positive else draws[name])
            ordered = name not in symmetry.reordered
            found |= {f"{name}, absolute": values} if ordered else {f"{name}, sorted": values.sort(-1).values}
    return found
