"""Detection of sites that a posterior identifies only up to signs, order or rotations of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.model import Target
from pyro_manifold.diagnostics.invariance import Invariance
from pyro_manifold.diagnostics.symmetry_of_columns import Independence, Symmetry
from pyro_manifold.manifolds import SpecialOrthogonal, Sphere, Stiefel

_POINTS = 3
_MOST_COMPANIONS = 8
_MOST_LOADINGS = 32  # sites without a manifold that are tried; each costs an evaluation of the density or a few


def symmetries(target: Target, samples: Mapping[str, Tensor], *, loadings: bool = True) -> list[Symmetry]:
    """Find the symmetries of a posterior by evaluating its density.

    A posterior does not identify the signs of the columns of U if its density is the same at U and at US, S any
    diagonal matrix of ±1, and does not identify rotations if it is the same at U and UR, R any orthogonal matrix. The
    density is evaluated at a few draws with random S and R. Other sites with as many columns may have to be transformed
    with U, to US and VS: each of them is tried alone, then all together. If signs are not identified, the order of the
    columns may not be either, with sites that have a value for each of them, and so may the signs of such values, alone
    or with the columns of one of the sites.

    Sites with orthonormal columns and unit vectors are tried, and the first 32 matrices of real numbers without a
    constraint, such as loadings with a Normal prior; of these their rows are tried too, for products UV. A matrix of
    independent numbers with a prior that is even, whose rows may change their signs as well, is not reported: it has no
    columns that could be aligned.

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
        names += [name for name in sorted(points[0]) if _may_be_loadings(name, target, points[0])][:_MOST_LOADINGS]
    angles = [name for name in target.angles if loadings and points and name in points[0]]
    if not names and not angles:
        return []
    density = Invariance(target, points)
    found: list[Symmetry] = []
    for name in names if density.points else []:
        taken = {each for symmetry in found for each in symmetry.names}
        if name in taken:
            continue
        symmetry = _symmetry_of(name, target, density, taken)
        found += [symmetry] if symmetry is not None else []
    taken = {each for symmetry in found for each in symmetry.names}
    found += [Symmetry("turns", (name,)) for name in angles if name not in taken and density.has_turns(name)]
    return found


def _symmetry_of(name: str, target: Target, density: Invariance, taken: set[str]) -> Symmetry | None:
    point = density.points[0]
    candidates = (_within_support(each, target) for each in _candidates(name, target, point, taken))
    if name not in target.manifolds:
        candidates = (each for each in candidates if density.may_have(each))
    symmetry = density.first(candidates)
    if symmetry is None or (name not in target.manifolds and density.has_even_rows(symmetry)):
        return None
    if name in symmetry.vectors:
        return symmetry
    rotations = symmetry._replace(kind="rotations")
    if symmetry.matrices(name, point[name]).shape[-1] > 1 and density.has(rotations):
        return rotations
    symmetry = density.first(_with_order(symmetry, target, point)) or symmetry
    scales = [each for each in sorted(point) if _may_be_positive(each, symmetry, target, point)]
    found = [density.signs_go_with(each, symmetry) for each in scales[:_MOST_COMPANIONS]]
    return symmetry._replace(positive=tuple(each for each in found if each is not None))


def _within_support(symmetry: Symmetry, target: Target) -> Symmetry:
    """Return the symmetry without transformations that lead away from the manifold of a site: rotations stay ones."""
    manifolds = (target.manifolds.get(name) for name in symmetry.sites)
    return symmetry._replace(proper=any(isinstance(each, SpecialOrthogonal) for each in manifolds))


def _may_be_positive(name: str, symmetry: Symmetry, target: Target, point: Sites) -> bool:
    """Return whether a site has a real number for each column, common to all elements of a plate or not."""
    *batch, _, columns = symmetry.matrices(symmetry.sites[0], point[symmetry.sites[0]]).shape
    shapes = {(columns,), (*batch, columns)}
    return name not in symmetry.sites and point[name].shape in shapes and _may_turn(name, target, point, columns)


def _coordinates(target: Target, values: Sites) -> Sites:
    if target.dependent:
        return target.positions(values)
    return {name: target.transforms[name](x) if name in target.transforms else x for name, x in values.items()}


def _may_be_loadings(name: str, target: Target, point: Sites) -> bool:
    """Return whether a site is a matrix of two rows or more, without a manifold or constraint."""
    value = point[name]
    matrix = name not in target.manifolds and value.is_floating_point() and value.dim() > 1 and value.shape[-2] > 1
    return matrix and value.numel() > 0 and _may_turn(name, target, point, value.shape[-1])


def _candidates(name: str, target: Target, point: Sites, taken: set[str]) -> Iterator[Symmetry]:
    """Yield changes of signs, the likelier first: of the site, with one other, with all others of as many columns."""
    if isinstance(target.manifolds.get(name), Sphere):
        for independence in _independences(point[name].shape[:-1]):
            yield Symmetry("signs", (name,), (name,), independent=independence)
    if name in target.manifolds and not isinstance(target.manifolds[name], Stiefel):
        return
    *batch, rows, columns = point[name].shape
    yield from _of_columns(name, columns, tuple(batch), target, point, taken)
    if name not in target.manifolds and rows != columns:
        yield from _of_columns(name, rows, tuple(batch), target, point, taken)


def _of_columns(
    name: str, columns: int, batch: tuple[int, ...], target: Target, point: Sites, taken: set[str]
) -> Iterator[Symmetry]:
    """Yield changes of signs of so many columns of a site, or of its rows if it has so many of these."""
    others = [each for each in point if each not in {name, *taken} and _may_change(each, target, point, columns)]
    if name not in target.manifolds:  # as companions of orthonormal matrices these have been tried
        others = [each for each in others if each not in target.manifolds]
    others.sort(key=lambda each: (-point[each].dim(), each))  # scores before scales
    for companions in _none_one_or_all(others):
        transposed = tuple(each for each in (name, *companions) if point[each].shape[-1] != columns)
        for vectors, independence in _ways(companions, batch, point):
            yield Symmetry("signs", (name, *companions), vectors, independent=independence, transposed=transposed)


def _may_change(name: str, target: Target, point: Sites, columns: int) -> bool:
    """Return whether a site has so many columns, or is an unconstrained matrix of so many rows."""
    value = point[name]
    if _may_turn(name, target, point, columns):
        return True
    rows = value.dim() > 1 and value.shape[-2] == columns and name not in target.manifolds
    return rows and _may_turn(name, target, point, value.shape[-1])


def _independences(batch: Sequence[int]) -> tuple[Independence, ...]:
    return ("all", "none") if batch else ("none",)


def _ways(
    companions: tuple[str, ...], batch: tuple[int, ...], point: Sites
) -> Iterator[tuple[tuple[str, ...], Independence]]:
    """Yield which companions are vectors, with elements of a plate changed on their own first, then all together."""
    if batch and all(point[each].shape[:-2] == batch or point[each].shape[:-1] == batch for each in companions):
        yield tuple(each for each in companions if point[each].shape[:-1] == batch), "all"
    if companions or not batch:
        yield tuple(each for each in companions if point[each].dim() == 1), "none"


def _with_order(symmetry: Symmetry, target: Target, point: Sites) -> Iterator[Symmetry]:
    """Yield the symmetry extended by the order of columns, with none, one or all of the sites that can be reordered."""
    *batch, _, columns = symmetry.matrices(symmetry.sites[0], point[symmetry.sites[0]]).shape
    others = [name for name in point if name not in symmetry.sites and _may_be_reordered(name, target, point, columns)]
    for companions in _none_one_or_all(others) if columns > 1 else ():
        extended = symmetry._replace(kind="permutations", reordered=companions)
        if symmetry.independent == "none":
            yield extended
            continue
        if all(point[name].shape[:-1] == tuple(batch) for name in companions):
            yield extended
        yield extended._replace(independent="signs")


def _may_be_reordered(name: str, target: Target, point: Sites, columns: int) -> bool:
    """Return whether a site has a value for each column, in any order of them."""
    x = point[name]
    if not x.dim() or x.shape[-1] != columns or not x.numel() or name in target.dependent:
        return False
    if name not in target.transforms:
        return True
    inverse = target.transforms[name].inv
    return torch.equal(inverse(x.flip(-1)), inverse(x).flip(-1))


def _none_one_or_all(names: list[str]) -> list[tuple[str, ...]]:
    names = names[:_MOST_COMPANIONS]
    return [(), *[(name,) for name in names], *([tuple(names)] if len(names) > 1 else [])]


def _may_turn(name: str, target: Target, point: Sites, columns: int) -> bool:
    """Return whether the columns of a site can be rotated without leaving its space."""
    value = point[name]
    if not value.dim() or value.shape[-1] != columns or name in target.dependent:
        return False
    if name in target.manifolds:
        return isinstance(target.manifolds[name], Stiefel)
    return torch.equal(target.transforms[name].inv(value), value) if name in target.transforms else True
