"""Detection of sites that a posterior identifies only up to signs, order or rotations of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pyro_manifold.density import Sites, Target
from pyro_manifold.diagnostics.candidate_symmetries import (
    MOST_COMPANIONS,
    candidates,
    elements_as_columns,
    is_matrix,
    may_be_loadings,
    may_turn,
)
from pyro_manifold.diagnostics.invariance import Invariance
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry
from pyro_manifold.manifolds import SpecialOrthogonal

_POINTS = 3
_MOST_LOADINGS = 32  # sites without a manifold that are tried; each costs an evaluation of the density or a few


def symmetries(target: Target, samples: Mapping[str, Tensor], *, loadings: bool = True) -> list[Symmetry]:
    """Find the symmetries of a posterior by evaluating its density.

    A posterior does not identify the signs of the columns of U if its density is the same at U and at US, S any
    diagonal matrix of ±1, and does not identify rotations if it is the same at U and UR, R any orthogonal matrix. The
    density is evaluated at a few draws with random S and R. Other sites with as many columns may have to be transformed
    with U, to US and VS: each of them is tried alone, then all together. If signs are not identified, the order of the
    columns may not be either, with sites that have a value for each of them, and so may the signs of such values, alone
    or with the columns of one of the sites.

    Sites with orthonormal columns and unit vectors are tried, and the first 32 matrices and vectors of real numbers
    without a constraint, such as loadings with a Normal prior; of these their rows are tried too, for products UV. The
    columns of a companion may be along any of its dimensions, and a plate of unit vectors is a matrix. One column, such
    as that of a single factor, changes its sign with companions of any shape. Independent numbers with a prior that is
    even, each of which may change its sign as well, are not reported: there is nothing that could be aligned.

    Angles with a prior on all real numbers, such as `VonMises`, are known up to whole turns if the density is periodic.

    Args:
        target: the target that was sampled.
        samples: ``{site: (draws, ...)}``, values of all its sites.
        loadings: whether to try matrices without a constraint.

    Returns:
        One symmetry for each site that has one, or for the sites that have it together.

    Examples:
        >>> from pyro_manifold.manifolds import Stiefel
        >>> samples = {"U": Stiefel().random_point(10, 4, 2)}
        >>> even = Target(lambda sites: -sites["U"][0].square().sum(), {"U": Stiefel()}, {})
        >>> [(symmetry.kind, symmetry.sites) for symmetry in symmetries(even, samples)]
        [('rotations', ('U',))]
        >>> symmetries(Target(lambda sites: -sites["U"][0, 0], {"U": Stiefel()}, {}), samples)
        []
        >>> products = Target(lambda sites: (sites["W"] @ sites["W"].mT - 1).square().sum(), {}, {})
        >>> [(symmetry.kind, symmetry.sites) for symmetry in symmetries(products, {"W": torch.randn(10, 4, 2)})]
        [('rotations', ('W',))]
    """
    draws = next(iter(samples.values())).shape[0] if samples else 0
    chosen = sorted({(k * (draws - 1)) // (_POINTS - 1) for k in range(_POINTS)}) if draws else []
    points = [_coordinates(target, {name: value[k].detach() for name, value in samples.items()}) for k in chosen]
    names = sorted(target.manifolds)
    if points and loadings:
        free = [name for name in sorted(points[0]) if may_be_loadings(name, target, points[0])]
        names += sorted(free, key=lambda name: not is_matrix(points[0][name]))[:_MOST_LOADINGS]
    angles = [name for name in target.angles if loadings and points and name in points[0]]
    if not names and not angles:
        return []
    density = Invariance(target, points)
    angles = [name for name in angles if density.has_turns(name)]
    found: list[Symmetry] = []
    for name in [name for name in names if name not in angles] if density.points else []:
        taken = {each for symmetry in found for each in symmetry.names}
        if name in taken:
            continue
        symmetry = _symmetry_of(name, target, density, taken)
        found += [symmetry] if symmetry is not None else []
    taken = {each for symmetry in found for each in symmetry.names}
    found += [Symmetry("turns", (name,)) for name in angles if name not in taken]
    return found


def _symmetry_of(name: str, target: Target, density: Invariance, taken: set[str]) -> Symmetry | None:
    point = density.points[0]
    tried = (
        each
        for each in (_within_support(each, target) for each in candidates(name, target, point, taken))
        if (name in target.manifolds and len(each.sites) < 3) or density.may_have(each)
    )
    symmetry = density.first(tried)
    if symmetry is None or (name not in target.manifolds and density.has_even_rows(symmetry)):
        return None
    if name not in target.manifolds and symmetry.whole and density.is_largest_at_zero(symmetry):
        return None
    if symmetry.is_one_sign:
        as_columns = elements_as_columns(symmetry, target, point)
        ordered = (density.first(_with_order(each, target, point)) for each in as_columns)
        return next((each for each in ordered if each is not None), symmetry)
    rotations = symmetry._replace(kind="rotations")
    columns = symmetry.matrices(name, point[name]).shape[-1]
    may_rotate = columns > 1 and all(may_turn(each, target, point) for each in symmetry.sites)
    if may_rotate and density.has(rotations):
        return rotations
    symmetry = density.first(_with_order(symmetry, target, point)) or symmetry
    scales = [each for each in sorted(point) if _may_be_positive(each, symmetry, target, point)]
    positive = [density.signs_go_with(each, symmetry) for each in scales[:MOST_COMPANIONS]]
    return symmetry._replace(positive=tuple(each for each in positive if each is not None))


def _within_support(symmetry: Symmetry, target: Target) -> Symmetry:
    """Return the symmetry without transformations that lead away from the manifold of a site: rotations stay ones."""
    manifolds = (target.manifolds.get(name) for name in symmetry.sites)
    proper = not symmetry.whole and any(isinstance(each, SpecialOrthogonal) for each in manifolds)
    return symmetry._replace(proper=proper)


def _may_be_positive(name: str, symmetry: Symmetry, target: Target, point: Sites) -> bool:
    """Return whether a site has a real number for each column, common to all elements of a plate or not."""
    *batch, _, columns = symmetry.matrices(symmetry.sites[0], point[symmetry.sites[0]]).shape
    shapes = {(columns,), (*batch, columns)}
    return name not in symmetry.sites and point[name].shape in shapes and may_turn(name, target, point)


def _coordinates(target: Target, values: Sites) -> Sites:
    if target.dependent:
        return target.positions(values)
    return {name: target.transforms[name](x) if name in target.transforms else x for name, x in values.items()}


def _with_order(symmetry: Symmetry, target: Target, point: Sites) -> Iterator[Symmetry]:
    """Yield the symmetry extended by the order of columns, with none, one or all of the sites that can be reordered."""
    *batch, _, columns = symmetry.matrices(symmetry.sites[0], point[symmetry.sites[0]]).shape
    others = {name: _orders(name, target, point, columns) for name in point if name not in symmetry.sites}
    ways = [(), *([(name, axis)] for name, axes in others.items() for axis in axes)]
    several = [(name, axes[0]) for name, axes in others.items() if axes][:MOST_COMPANIONS]
    for companions in [*ways, *([several] if len(several) > 1 else [])] if columns > 1 else ():
        own = tuple((name, axis) for name, axis in companions if axis != -1)
        extended = symmetry._replace(
            kind="permutations", reordered=tuple(name for name, _ in companions), axes=(*symmetry.axes, *own)
        )
        if symmetry.independent == "none":
            yield extended
            continue
        if own:
            continue
        if all(point[name].shape[:-1] == tuple(batch) for name, _ in companions):
            yield extended
        yield extended._replace(independent="signs")


def _orders(name: str, target: Target, point: Sites, columns: int) -> list[int]:
    """Return the dimensions, from the end, along which a site has a value for each column, in any order of them."""
    x = point[name]
    if not x.numel() or name in target.dependent:
        return []
    axes = [axis for axis in range(-1, -x.dim() - 1, -1) if x.shape[axis] == columns]
    if name not in target.transforms:
        return axes
    inverse = target.transforms[name].inv
    value = inverse(x)
    if value.shape != x.shape:  # such as correlations, whose coordinates are fewer
        return axes if axes[:1] == [-1] and torch.equal(inverse(x.flip(-1)), value.flip(-1)) else []
    return [axis for axis in axes if torch.equal(inverse(x.flip(axis)), value.flip(axis))]
