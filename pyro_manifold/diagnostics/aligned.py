r"""Draws of all sites of a posterior, aligned by its symmetries.

Where the density is the same at U and at UT, with scales and scores that change along, each draw is replaced by the
equivalent one that is nearest to a common reference. The reference is a mean of aligned draws, and neither it nor the
result depends on the signs, order or rotation in which any chain happens to have its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics.alignment import (
    nearest_permutations,
    nearest_proper_permutations,
    nearest_rotations,
    nearest_signs,
    without_reflections,
)
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry
from pyro_manifold.manifolds import with_positive_determinant

_STARTS = 8
_MOST_DRAWS_OF_REFERENCE = 1000
_MOST_ROUNDS = 100
_CONTESTED = 0.25  # of the median loss by another choice


class AlignedDraws(NamedTuple):
    """Aligned draws of all sites.

    Attributes:
        draws: ``{site: (chains, draws, ...)}``; sites without a symmetry are those given.
        ambiguous_fraction: for each symmetry, the fraction of the draws for which another choice of signs, order or
            reflection is nearly as good: it loses less than a quarter of what it loses in the median draw.
    """

    draws: dict[str, Tensor]
    ambiguous_fraction: tuple[float, ...]


class _Changes(NamedTuple):
    """Transformations of the columns of each draw.

    Attributes:
        turns: orthogonal matrices T, ``(chains, draws, [batch], p, p)``.
        order: permutations, ``(chains, draws, [batch], p, p)``; without batch where the order is common.
    """

    turns: Tensor
    order: Tensor


def align_draws(draws: Mapping[str, Tensor], symmetries: Sequence[Symmetry]) -> AlignedDraws:
    r"""Align the draws of all sites that have a symmetry.

    For a symmetry of sites X, Z, ... the T of a draw maximises $\operatorname{tr}(R^\top Y T)$ over diagonal
    matrices of ±1, signed permutations or orthogonal matrices. Y has the rows of all these sites, each site divided by
    its root mean square over draws. R is the mean of the aligned YT (generalised Procrustes analysis, Gower 1975,
    Psychometrika 40); iterations begin at the one of eight draws that is nearest to all. Sites become XT, ZT, ..., and
    those with a value for each column are reordered as the columns are; those whose signs are not identified are made
    positive first, with the columns that change signs with them. Products such as
    $X \operatorname{diag}(s) X^\top$ and $X Z^\top$ do not change.

    If one of the sites is a rotation, T has determinant 1, so that it stays one. Angles that are known up to whole
    turns are within π of their mean direction.

    This leaves one transformation that is common to all draws. Signs and order: columns are in decreasing order of
    their size, the norm of a column of R times the mean of the values that are reordered with it. Rotations: the
    columns of R are along its principal axes. The largest entry of each column of R is positive.

    Args:
        draws: ``{site: (chains, draws, ...)}`` of all sites of the symmetries, with finite entries.
        symmetries: symmetries of the posterior, as found by `MCMC.symmetries`.

    Returns:
        `AlignedDraws`: the draws of all sites, and the share of ambiguous_fraction draws for each symmetry.

    Source: Gower 1975, Psychometrika 40; Papastamoulis & Ntzoufras 2022, Statistics and Computing 32:23.

    Examples:
        >>> U = torch.eye(3, 2, dtype=torch.float64)
        >>> draws = {"U": torch.stack([U, -U.flip(-1)])[None], "s": torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])}
        >>> aligned = align_draws(draws, [Symmetry("permutations", ("U",), reordered=("s",))]).draws
        >>> bool((aligned["U"] == U).all()), aligned["s"].tolist()
        (True, [[[2.0, 1.0], [2.0, 1.0]]])
    """
    found, ambiguous_fraction = dict(draws), []
    for symmetry in symmetries:
        if symmetry.kind == "turns":
            (name,) = symmetry.sites
            found[name], share = _in_the_nearest_turn(draws[name].detach())
            ambiguous_fraction.append(share)
            continue
        positive = _with_positive_scales(found, symmetry)
        found |= positive
        draws = dict(draws) | positive
        stacked = _stacked(draws, symmetry)
        reference = _reference(stacked, symmetry)
        reference = reference @ _orientation(reference, _weights(draws, symmetry, stacked, reference), symmetry)
        changes = _nearest(stacked.mT @ reference, symmetry)
        found |= _changed(draws, symmetry, changes)
        ambiguous_fraction.append(_contested((stacked @ changes.turns).mT @ reference, symmetry))
    return AlignedDraws(found, tuple(ambiguous_fraction))


def _in_the_nearest_turn(angles: Tensor) -> tuple[Tensor, float]:
    """Return angles within π of their mean direction, and the largest share of draws nearly opposite to it."""
    mean = torch.atan2(angles.sin().mean((0, 1)), angles.cos().mean((0, 1)))
    apart = torch.remainder(angles - mean + torch.pi, 2 * torch.pi) - torch.pi
    opposite = (apart.abs() > (1 - _CONTESTED / 2) * torch.pi).double().mean((0, 1))
    return mean + apart, float(opposite.max())


def _with_positive_scales(draws: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, Tensor]:
    """Return the sites of a symmetry that change when its scales of any sign are made positive."""
    found: dict[str, Tensor] = {}
    for names in symmetry.positive:
        values = {name: found.get(name, draws[name]).detach() for name in names}
        signs = torch.where(values[names[0]] < 0, -1.0, 1.0).to(values[names[0]])
        found |= symmetry.with_signs(names, values, signs)
    return found


def _stacked(draws: Mapping[str, Tensor], symmetry: Symmetry) -> Tensor:
    """Return the rows of all sites, ``(chains, draws, [batch], rows, p)``, with a batch if its elements differ."""
    parts = []
    for name in symmetry.sites:
        rows = symmetry.rows(name, draws[name].detach(), 2)
        parts.append(rows / rows.square().mean().sqrt().clamp(min=torch.finfo(rows.dtype).tiny))
    return torch.cat(parts, -2)


def _nearest(products: Tensor, symmetry: Symmetry) -> _Changes:
    """Return the transformations with the largest gains, from products of draws and reference, ``(..., p, p)``."""
    if symmetry.kind == "rotations":
        turns = nearest_rotations(products, proper=symmetry.proper)
        return _Changes(turns, torch.eye(products.shape[-1]).to(products).expand_as(turns))
    if symmetry.kind == "signs":
        turns = nearest_signs(products, proper=symmetry.proper)
        return _Changes(turns, turns.abs())
    common = symmetry.independent == "signs"
    if symmetry.proper and not common:
        turns = nearest_proper_permutations(products)
        return _Changes(turns, turns.abs())
    order = nearest_permutations(products.abs().flatten(2, -3).sum(2) if common else products.abs())
    spread = order.reshape(*order.shape[:2], *[1] * (products.dim() - order.dim()), *order.shape[2:])
    turns = spread * torch.where(products < 0, -1.0, 1.0).to(products)
    return _Changes(without_reflections(turns, products) if symmetry.proper else turns, order)


def _reference(stacked: Tensor, symmetry: Symmetry) -> Tensor:
    """Return the mean of the draws aligned to it, ``([batch], rows, p)``."""
    flat = stacked.flatten(0, 1)
    flat = flat[_evenly(len(flat), _MOST_DRAWS_OF_REFERENCE)]
    starts = flat[_evenly(len(flat), _STARTS)]
    # A start in place of chains, all draws in place of those of one chain.
    products = flat.unsqueeze(0).mT @ starts.unsqueeze(1)
    gains = (products * _nearest(products, symmetry).turns).sum((-2, -1)).sum(1) / starts.square().sum((-2, -1)).sqrt()
    if symmetry.independent == "signs":  # the order of one start for all elements
        gains = gains.flatten(1).sum(1)
    best = gains.argmax(0).reshape(1, *gains.shape[1:], *[1] * (starts.dim() - gains.dim())).expand_as(starts[:1])
    reference = starts.gather(0, best)[0]
    tolerance = float(torch.finfo(flat.dtype).eps) ** 0.75
    flat = flat.unsqueeze(0)
    for _ in range(_MOST_ROUNDS):
        updated = (flat @ _nearest(flat.mT @ reference, symmetry).turns).mean((0, 1))
        change = float((updated - reference).norm())
        reference = updated
        if change <= tolerance * float(updated.norm()):
            break
    return reference


def _evenly(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def _weights(draws: Mapping[str, Tensor], symmetry: Symmetry, stacked: Tensor, reference: Tensor) -> Tensor:
    """Return the size of each column, ``([batch], p)``: its norm times the means of what is reordered with it."""
    weights = reference.norm(dim=-2)
    if symmetry.independent == "signs":
        weights = weights.flatten(0, -2).mean(0)
    if symmetry.reordered:
        order = _nearest(stacked.mT @ reference, symmetry).order
        for name in symmetry.reordered:
            values = symmetry.columns_last(name, draws[name].detach())
            means = _reordered(values, order).abs().mean((0, 1))
            weights = weights * (means if means.shape == weights.shape else means.flatten(0, -2).mean(0))
    return weights


def _orientation(reference: Tensor, weights: Tensor, symmetry: Symmetry) -> Tensor:
    """Return the transformation of the reference that makes its columns unique, ``([batch], p, p)``."""
    p = reference.shape[-1]
    if symmetry.kind == "rotations":
        turn = torch.linalg.svd(reference, full_matrices=reference.shape[-2] < p).Vh.mT
    elif symmetry.kind == "permutations":
        turn = torch.nn.functional.one_hot(weights.argsort(-1, descending=True), p).mT.to(reference)
    else:
        turn = torch.eye(p).to(reference)
    oriented = reference @ turn
    largest = oriented.gather(-2, oriented.abs().argmax(-2, keepdim=True))
    turn = turn * torch.where(largest < 0, -1.0, 1.0).to(reference)
    return with_positive_determinant(turn) if symmetry.proper else turn


def _changed(draws: Mapping[str, Tensor], symmetry: Symmetry, changes: _Changes) -> dict[str, Tensor]:
    found = {}
    for name in symmetry.sites:
        values = draws[name].detach()
        rows = symmetry.rows(name, values, 2)
        found[name] = symmetry.put_back(name, rows @ changes.turns.to(rows), values)
    for name in symmetry.reordered:
        values = _reordered(symmetry.columns_last(name, draws[name].detach()), changes.order)
        found[name] = symmetry.columns_back(name, values)
    return found


def _reordered(values: Tensor, order: Tensor) -> Tensor:
    """Reorder ``(chains, draws, ..., p)`` by permutations of each draw, or of each element of its batch."""
    places = order.argmax(-2)
    if places.dim() < values.dim():
        places = places.reshape(*places.shape[:2], *[1] * (values.dim() - places.dim()), places.shape[-1])
    return values.gather(-1, places.expand_as(values))


def _contested(products: Tensor, symmetry: Symmetry) -> float:
    """Return the largest share of draws for which one other choice loses little, from products XᵀR of aligned draws."""
    losses = (_proper_losses if symmetry.proper else _losses)(products, symmetry.kind).flatten(0, 1)
    if not losses.shape[-1]:
        return 0.0
    small = losses < _CONTESTED * losses.median(0).values
    return float(small.double().mean(0).max())


def _losses(products: Tensor, kind: str) -> Tensor:
    """Return the losses by other choices, ``(..., choices)``: by a sign, a swap of two columns, or a reflection."""
    if kind == "rotations":
        return torch.linalg.svdvals(products)[..., -1:]
    own = products.diagonal(dim1=-2, dim2=-1)
    losses = 2 * own
    if kind == "permutations":
        crossed = products.abs()
        first, second = torch.triu_indices(own.shape[-1], own.shape[-1], 1)
        swapped = crossed[..., first, second] + crossed[..., second, first]
        losses = torch.cat([losses, own[..., first] + own[..., second] - swapped], -1)
    return losses


def _proper_losses(products: Tensor, kind: str) -> Tensor:
    """Return the losses by other choices of determinant 1: by the signs of two columns, or by a quarter turn of two.

    None by rotations, which are one choice.
    """
    own = products.diagonal(dim1=-2, dim2=-1)
    if kind == "rotations":
        return own[..., :0]
    first, second = torch.triu_indices(own.shape[-1], own.shape[-1], 1)
    both = own[..., first] + own[..., second]
    turned = (products[..., first, second] - products[..., second, first]).abs()
    return torch.cat([2 * both, both - turned], -1) if kind == "permutations" else 2 * both
