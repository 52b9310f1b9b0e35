"""Changes of signs that a posterior may not identify, by the shapes of its sites; the density decides on each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeVar

import torch

from pyro_manifold.density import Sites, Target
from pyro_manifold.diagnostics.symmetry_of_columns import Independence, Symmetry
from pyro_manifold.manifolds import SpecialOrthogonal, Sphere, Stiefel

MOST_COMPANIONS = 8


Place = tuple[str, int]
"""A site and the dimension of its columns, counted from the end."""

Companion = TypeVar("Companion")


def candidates(name: str, target: Target, point: Sites, taken: set[str]) -> Iterator[Symmetry]:
    """Yield changes of signs of a site, the likelier first: alone, with one other, with all others, with two or three.

    Args:
        name: the site.
        target: the density.
        point: ``{site: value}``, unconstrained.
        taken: sites that have a symmetry already.
    """
    manifold, x = target.manifolds.get(name), point[name]
    if isinstance(manifold, Sphere):
        for independence in _independences(x.shape[:-1]):
            yield Symmetry("signs", (name,), (name,), independent=independence)
        for axis in range(-2, -x.dim() - 1, -1):
            if x.shape[axis] > 1:
                yield from _of_columns((name, axis), target, point, taken)
        yield from _of_one_column(name, x.shape[:-1], target, point, taken)
        return
    if manifold is not None and not isinstance(manifold, Stiefel):
        return
    if x.dim() > 1:
        batch = x.shape[:-2] if x.shape[-1] > 1 or manifold is not None else ()
        yield from _of_columns((name, -1), target, point, taken, batch)
        if manifold is None and x.shape[-2] not in (1, x.shape[-1]):
            yield from _of_columns((name, -2), target, point, taken, batch)
    if manifold is None or x.shape[-1] == 1:
        yield from _of_one_column(name, x.shape[:-2] if manifold is not None else (), target, point, taken)


def elements_as_columns(symmetry: Symmetry, target: Target, point: Sites) -> Iterator[Symmetry]:
    """Yield a sign of each unit vector of a plate as the signs of the columns of a matrix, which may have an order."""
    name = symmetry.sites[0]
    if len(symmetry.sites) == 1 and symmetry.independent == "all" and isinstance(target.manifolds.get(name), Sphere):
        for axis in range(-2, -point[name].dim() - 1, -1):
            if point[name].shape[:-1].numel() == point[name].shape[axis]:
                yield _of_places([(name, axis)])


def is_matrix(value: torch.Tensor) -> bool:
    """Return whether a value has two rows or more."""
    return value.dim() > 1 and value.shape[-2] > 1


def may_be_loadings(name: str, target: Target, point: Sites) -> bool:
    """Return whether a site is a vector or matrix of two numbers or more, without a manifold or constraint."""
    value = point[name]
    free = name not in target.manifolds and value.is_floating_point()
    return free and value.dim() > 0 and value.numel() > 1 and may_turn(name, target, point)


def may_turn(name: str, target: Target, point: Sites) -> bool:
    """Return whether the columns of a site can be rotated without leaving its space."""
    if name in target.manifolds:
        return isinstance(target.manifolds[name], Stiefel)
    if name in target.dependent:
        return False
    value = point[name]
    return torch.equal(target.transforms[name].inv(value), value) if name in target.transforms else True


def _may_flip(name: str, target: Target, point: Sites) -> bool:
    """Return whether a site can change its sign: an interval may lie on both sides of 0."""
    value = point[name]
    if not value.is_floating_point() or not value.numel() or name in target.dependent:
        return False
    if isinstance(target.manifolds.get(name), SpecialOrthogonal):
        return value.shape[-1] % 2 == 0  # else -R is a reflection
    if name in target.manifolds:
        return isinstance(target.manifolds[name], Stiefel | Sphere)
    if name not in target.transforms:
        return True
    constrained = target.transforms[name].inv
    return torch.allclose(constrained(-value), -constrained(value))


def _of_columns(
    first: Place, target: Target, point: Sites, taken: set[str], batch: Sequence[int] = ()
) -> Iterator[Symmetry]:
    """Yield changes of signs of the columns of a site, with the columns of others."""
    name, axis = first
    columns = point[name].shape[axis]
    places = {each: _axes(each, target, point, columns) for each in _others(name, target, point, taken)}
    places = {each: axes for each, axes in places.items() if axes}
    usual = [(each, axes[0]) for each, axes in places.items()]
    unusual = [[(each, axis)] for each, axes in places.items() for axis in axes[1:]]
    for companions in [*_together(usual), *unusual]:
        for vectors, independence in _ways(companions, tuple(batch), point):
            yield _of_places([first, *companions], vectors, independence)


def _of_places(places: Sequence[Place], vectors: tuple[str, ...] = (), independence: Independence = "none") -> Symmetry:
    return Symmetry(
        "signs",
        tuple(name for name, _ in places),
        vectors,
        independent=independence,
        transposed=tuple(name for name, axis in places if axis == -2),
        axes=tuple((name, axis) for name, axis in places if axis < -2),
    )


def _of_one_column(
    name: str, batch: Sequence[int], target: Target, point: Sites, taken: set[str]
) -> Iterator[Symmetry]:
    """Yield changes of the sign of a site with others of any shape, for each element of its plates or all together."""
    others = [each for each in _others(name, target, point, taken) if _may_flip(each, target, point)]
    front = len(batch)
    alone = name not in target.manifolds
    if batch:
        inside = [each for each in others if point[each].shape[:front] == tuple(batch)]
        for companions in _together(inside):
            if companions:
                whole = tuple((each, point[each].dim() - front) for each in (name, *companions))
                yield Symmetry("signs", (name, *companions), independent="all", whole=whole)
    for companions in _together(others):
        if companions or alone:
            whole = tuple((each, point[each].dim()) for each in (name, *companions))
            yield Symmetry("signs", (name, *companions), whole=whole)


def _others(name: str, target: Target, point: Sites, taken: set[str]) -> list[str]:
    """Return the sites that may change with a site, scores before scales."""
    others = [each for each in point if each not in {name, *taken}]
    if name not in target.manifolds:  # as companions of orthonormal matrices these have been tried
        others = [each for each in others if each not in target.manifolds]
    return sorted(others, key=lambda each: (-point[each].dim(), each))


def _axes(name: str, target: Target, point: Sites, columns: int) -> list[int]:
    """Return the dimensions, from the end, along which a site may have so many columns, the likeliest first."""
    shape, manifold = point[name].shape, target.manifolds.get(name)
    axes = [axis for axis in range(-1, -len(shape) - 1, -1) if shape[axis] == columns]
    if isinstance(manifold, Sphere):
        return [axis for axis in axes if axis != -1]
    if manifold is not None:
        return [axis for axis in axes if axis == -1 and isinstance(manifold, Stiefel)]
    return axes if may_turn(name, target, point) else []


def _independences(batch: Sequence[int]) -> tuple[Independence, ...]:
    return ("all", "none") if batch else ("none",)


def _ways(
    companions: Sequence[Place], batch: tuple[int, ...], point: Sites
) -> Iterator[tuple[tuple[str, ...], Independence]]:
    """Yield which companions are vectors, with elements of a plate changed on their own first, then all together."""
    shapes = {name: point[name].shape for name, _ in companions}
    near = all(axis >= -2 for _, axis in companions)
    if batch and near and all(batch in (shape[:-2], shape[:-1]) for shape in shapes.values()):
        yield tuple(name for name, shape in shapes.items() if shape[:-1] == batch), "all"
    if companions or not batch:
        yield tuple(name for name, shape in shapes.items() if len(shape) == 1), "none"


def _together(companions: list[Companion]) -> list[list[Companion]]:
    """Return none of the companions, one, all, and if there are few, two or three of them.

    Where there are more than eight, those whose names differ by a number, as those of a loop do, count as one.
    """
    units = [[each] for each in companions]
    if len(units) > MOST_COMPANIONS:
        loops: dict[str, list[Companion]] = {}
        for each in companions:
            loops.setdefault(re.sub(r"\d+", "#", str(each)), []).append(each)
        units = list(loops.values())
    sizes = (2, 3) if len(units) <= MOST_COMPANIONS else ()
    several = [companions] if len(units) > 1 else []
    chosen = (each for size in sizes if size < len(units) for each in combinations(units, size))
    few = [[each for unit in together for each in unit] for together in chosen]
    return [[], *units[:MOST_COMPANIONS], *several, *few]
