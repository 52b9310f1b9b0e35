"""Detection of sites that a posterior identifies only up to signs, order or rotations of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.model import Target
from pyro_manifold.graphs.agreement import FactorisationError, effect_of_rounding
from pyro_manifold.manifolds import Sphere, Stiefel

_POINTS = 3
_SIGNS_AT_EACH = 4
_MOST_COMPANIONS = 8
_UNITS_OF_ROUNDING = 32.0


class Symmetry(NamedTuple):
    """A transformation of sites that does not change a density.

    Attributes:
        kind: the transformations of the columns: ``"signs"``, ``"permutations"`` (signs and order) or ``"rotations"``.
        sites: the sites whose columns are transformed; several are transformed together.
        vectors: those of them that are vectors: a unit vector, which is one column, or a companion with one number
            for each column.
        reordered: sites with a value for each column, such as scales, that are reordered with the columns.
    """

    kind: str
    sites: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    reordered: tuple[str, ...] = ()

    def matrices(self, name: str, values: Tensor) -> Tensor:
        """Return values of a site as matrices: a unit vector as one column, a companion's vector as one row."""
        if name not in self.vectors:
            return values
        return values.unsqueeze(-1 if name == self.sites[0] else -2)

    def sentence(self) -> str:
        """Return a sentence about the symmetry for the summary table."""
        verb, their = ("is", "its") if len(self.sites) == 1 else ("are", "their")
        changes = {"signs": "the signs", "permutations": "the signs and the order", "rotations": "rotations"}
        what = f"{changes[self.kind]} of {their} columns" + (", together" if len(self.sites) > 1 else "")
        if self.sites[0] in self.vectors:
            what = "its sign"
        if self.reordered:
            what += f", with {_quoted(self.reordered)} in the same order"
        return (
            f"{_quoted(self.sites)} {verb} known only up to {what}: means and R-hat of {their} entries say little; see "
            f"pyro_manifold.diagnostics.summarise_invariants({self._arguments()})."
        )

    def _arguments(self) -> str:
        """Return the arguments of `summarise_invariants`: one product if there are no more than three factors."""
        first, *others = self.sites
        arguments = [first + ("[..., None]" if first in self.vectors else "")]
        if len(others) > 1 or len(self.reordered) > 1 or not (others or self.reordered):
            return f'{arguments[0]}, kind="{self.kind}"'
        arguments += [f"scales={name}" for name in self.reordered]
        arguments += [f"right={name}" + ("[..., None, :]" if name in self.vectors else "") for name in others]
        return ", ".join(arguments)


def _quoted(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def symmetries(target: Target, samples: Mapping[str, Tensor]) -> list[Symmetry]:
    """Find the symmetries of a posterior, for each site with orthonormal columns, by evaluating its density.

    A posterior does not identify the signs of the columns of U if its density is the same at U and at US, S any
    diagonal matrix of ±1, and does not identify rotations if it is the same at U and UR, R any orthogonal matrix. The
    density is evaluated at a few draws with random S and R. Other sites with as many columns may have to be transformed
    with U, to US and VS: each of them is tried alone, then all together. If signs are not identified, the order of the
    columns may not be either, with sites that have a value for each of them.

    Args:
        target: the target that was sampled.
        samples: ``{site: (draws, ...)}``, values of all its sites.

    Returns:
        One symmetry for each site that has one, or for the sites that have it together.

    Example:
        >>> from pyro_manifold.manifolds import Stiefel
        >>> samples = {"U": Stiefel().random_point(10, 4, 2)}
        >>> even = Target(lambda sites: -sites["U"][0].square().sum(), {"U": Stiefel()}, {})
        >>> [(symmetry.kind, symmetry.sites) for symmetry in symmetries(even, samples)]
        [('rotations', ('U',))]
        >>> symmetries(Target(lambda sites: -sites["U"][0, 0], {"U": Stiefel()}, {}), samples)
        []
    """
    draws = next(iter(samples.values())).shape[0] if samples else 0
    chosen = sorted({(k * (draws - 1)) // (_POINTS - 1) for k in range(_POINTS)}) if draws else []
    points = [_coordinates(target, {name: value[k].detach() for name, value in samples.items()}) for k in chosen]
    density = _Density(target, points)
    found: list[Symmetry] = []
    for name in sorted(target.manifolds):
        if any(name in symmetry.sites for symmetry in found) or not density.points:
            continue
        point = density.points[0]
        symmetry = density.first(_candidates(name, target, point))
        if symmetry is not None and symmetry.kind == "signs" and name not in symmetry.vectors:
            symmetry = density.first(_with_order(symmetry, point)) or symmetry
        found += [symmetry] if symmetry is not None else []
    return found


def _coordinates(target: Target, values: Sites) -> Sites:
    return {name: target.transforms[name](x) if name in target.transforms else x for name, x in values.items()}


def _candidates(name: str, target: Target, point: Sites) -> Iterator[Symmetry]:
    """Yield candidates, the likelier first: the site alone, with one other, with all others of as many columns."""
    if isinstance(target.manifolds[name], Sphere):
        yield Symmetry("signs", (name,), (name,))
    if not isinstance(target.manifolds[name], Stiefel):
        return
    columns = point[name].shape[-1]
    others = [each for each in point if each != name and _may_turn(each, target, point, columns)]
    for companions in _none_one_or_all(others):
        for kind in ("rotations", "signs") if columns > 1 else ("signs",):
            yield Symmetry(kind, (name, *companions), tuple(each for each in companions if point[each].dim() == 1))


def _with_order(symmetry: Symmetry, point: Sites) -> Iterator[Symmetry]:
    """Yield the symmetry extended by the order of columns, with none, one or all of the sites that can be reordered."""
    columns = point[symmetry.sites[0]].shape[-1]
    others = [name for name, x in point.items() if name not in symmetry.sites and x.dim() and x.shape[-1] == columns]
    for companions in _none_one_or_all(others) if columns > 1 else ():
        yield symmetry._replace(kind="permutations", reordered=companions)


def _none_one_or_all(names: list[str]) -> list[tuple[str, ...]]:
    names = names[:_MOST_COMPANIONS]
    return [(), *[(name,) for name in names], *([tuple(names)] if len(names) > 1 else [])]


def _may_turn(name: str, target: Target, point: Sites, columns: int) -> bool:
    """Return whether the columns of a site can be rotated without leaving its space."""
    value = point[name]
    if not value.dim() or value.shape[-1] != columns:
        return False
    if name in target.manifolds:
        return isinstance(target.manifolds[name], Stiefel)
    return torch.equal(target.transforms[name].inv(value), value) if name in target.transforms else True


class _Density:
    """The density of a target at some points, those where it is finite."""

    def __init__(self, target: Target, points: list[Sites]) -> None:
        self._target = target
        energies = [self._energy(point) for point in points]
        self.points = [point for point, energy in zip(points, energies, strict=True) if energy.isfinite()]
        self._energies = [energy for energy in energies if energy.isfinite()]
        self._tolerances = [self._tolerance(*pair) for pair in zip(self.points, self._energies, strict=True)]

    def first(self, candidates: Iterator[Symmetry]) -> Symmetry | None:
        """Return the first of the candidates under which the density is invariant."""
        return next((candidate for candidate in candidates if self.has(candidate)), None)

    def has(self, symmetry: Symmetry) -> bool:
        """Return whether the density is the same after each of some random transformations."""
        # A generator of its own, so that the check does not change the random number stream of the process.
        generator = torch.Generator().manual_seed(0)
        return all(
            bool((self._energy({**point, **moved}) - energy).abs() <= tolerance)
            for point, energy, tolerance in zip(self.points, self._energies, self._tolerances, strict=True)
            for moved in _moved(symmetry, point, generator)
        )

    def _energy(self, point: Sites) -> Tensor:
        try:
            with torch.no_grad():
                return self._target.potential_fn(point)
        except FactorisationError:
            return torch.tensor(torch.nan)

    def _tolerance(self, point: Sites, energy: Tensor) -> float:
        """Return a tolerance for the rounding of the energy, a sum of many terms, and for the rounding of its sites."""
        names = list(point)

        def energy_at(*values: Tensor) -> tuple[Tensor, ...]:
            return (self._energy(dict(zip(names, values, strict=True))),)

        (moved,) = effect_of_rounding(energy_at, list(point.values()), [energy])
        size = float(torch.finfo(energy.dtype).eps) * max(1.0, abs(float(energy)))
        return _UNITS_OF_ROUNDING * size + 2 * float(moved)


def _moved(symmetry: Symmetry, point: Sites, generator: torch.Generator) -> Iterator[Sites]:
    """Yield the transformed sites; elements of a plate get independent transformations, unless other sites have one."""
    first = point[symmetry.sites[0]]
    if symmetry.sites[0] in symmetry.vectors:
        yield {symmetry.sites[0]: -first}
        return
    batch = first.shape[:-2] if len(symmetry.sites + symmetry.reordered) == 1 else ()
    for _ in range(1 if symmetry.kind == "rotations" else _SIGNS_AT_EACH):
        change = _random_change(symmetry.kind, (*batch, first.shape[-1]), generator).to(first)
        turned = {name: point[name] @ change for name in symmetry.sites}
        yield turned | {name: point[name] @ change.abs() for name in symmetry.reordered}


def _random_change(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if kind == "rotations":
        entries = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
        return torch.linalg.qr(entries)[0]
    change = torch.diag_embed(2.0 * torch.randint(2, shape, generator=generator) - 1)
    if kind == "signs":
        return change
    order = torch.rand(shape, generator=generator).argsort(-1)
    return change.gather(-1, order.unsqueeze(-2).expand_as(change))
