"""Detection of sites that a posterior identifies only up to signs, order or rotations of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.model import Target
from pyro_manifold.graphs.agreement import FactorisationError, effect_of_rounding
from pyro_manifold.manifolds import Sphere, Stiefel

_POINTS = 3
_SIGNS_AT_EACH = 4
_MOST_COMPANIONS = 8
_MOST_LOADINGS = 32  # sites without a manifold that are tried; each costs an evaluation of the density or a few
_QUICKLY_APART = 10.0  # times half the digits: a larger difference is not rounding, whatever the model
_UNITS_OF_ROUNDING = 32.0


Independence = Literal["none", "signs", "all"]


class Symmetry(NamedTuple):
    """A transformation of sites that does not change a density.

    Attributes:
        kind: the transformations of the columns: ``"signs"``, ``"permutations"`` (signs and order) or ``"rotations"``.
        sites: the sites whose columns are transformed; several are transformed together.
        vectors: those of them that are vectors: a unit vector, which is one column, or a companion with one number
            for each column.
        reordered: sites with a value for each column, such as scales, that are reordered with the columns.
        independent: transformations that elements of a plate have of their own: ``"none"``, ``"signs"`` (the order is
            common to all elements) or ``"all"``.
    """

    kind: str
    sites: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    reordered: tuple[str, ...] = ()
    independent: Independence = "none"

    def matrices(self, name: str, values: Tensor) -> Tensor:
        """Return values of a site as matrices: a unit vector as one column, a companion's vector as one row."""
        if name not in self.vectors:
            return values
        return values.unsqueeze(-1 if name == self.sites[0] else -2)

    def rows(self, name: str, values: Tensor, leading: int) -> Tensor:
        """Return the rows of a site that are transformed by one matrix.

        Args:
            name: one of ``sites``.
            values: ``(..., [batch], n, p)``; a vector has no n, or no p if it is one column.
            leading: number of dimensions in front of the batch, such as chains and draws.

        Returns:
            ``(..., rows, p)``, with the batch before rows where its elements have transformations of their own.
        """
        rows = self.matrices(name, values)
        return rows.flatten(leading, -2) if self.independent == "none" else rows

    def known_up_to(self) -> str:
        """Return a clause that names the sites and the transformations."""
        verb, their = ("is", "its") if len(self.sites) == 1 else ("are", "their")
        changes = {"signs": "the signs", "permutations": "the signs and the order", "rotations": "rotations"}
        what = f"{changes[self.kind]} of {their} columns" + (", together" if len(self.sites) > 1 else "")
        if self.sites[0] in self.vectors:
            what = "its sign"
        if self.reordered:
            what += f", with {_quoted(self.reordered)} in the same order"
        return f"{_quoted(self.sites)} {verb} known only up to {what}"

    def sentence(self) -> str:
        """Return a sentence about the symmetry for the summary table of draws as they were sampled."""
        their = "its" if len(self.sites) == 1 else "their"
        return (
            f"{self.known_up_to()}: means and R-hat of {their} entries are not meaningful; see "
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


def symmetries(target: Target, samples: Mapping[str, Tensor], *, loadings: bool = True) -> list[Symmetry]:
    """Find the symmetries of a posterior by evaluating its density.

    A posterior does not identify the signs of the columns of U if its density is the same at U and at US, S any
    diagonal matrix of ±1, and does not identify rotations if it is the same at U and UR, R any orthogonal matrix. The
    density is evaluated at a few draws with random S and R. Other sites with as many columns may have to be transformed
    with U, to US and VS: each of them is tried alone, then all together. If signs are not identified, the order of the
    columns may not be either, with sites that have a value for each of them.

    Sites with orthonormal columns and unit vectors are tried, and the first 32 matrices of real numbers without a
    constraint, such as loadings with a Normal prior. A matrix of independent numbers with a prior that is even, whose
    rows may change their signs as well, is not reported: it has no columns that could be aligned.

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
    if not names:
        return []
    density = _Density(target, points)
    found: list[Symmetry] = []
    for name in names if density.points else []:
        taken = {each for symmetry in found for each in symmetry.sites + symmetry.reordered}
        if name in taken:
            continue
        symmetry = _symmetry_of(name, target, density, taken)
        found += [symmetry] if symmetry is not None else []
    return found


def _symmetry_of(name: str, target: Target, density: _Density, taken: set[str]) -> Symmetry | None:
    point = density.points[0]
    candidates = _candidates(name, target, point, taken)
    if name not in target.manifolds:
        candidates = (each for each in candidates if density.may_have(each))
    symmetry = density.first(candidates)
    if symmetry is None or (name not in target.manifolds and density.has_even_rows(symmetry)):
        return None
    if name in symmetry.vectors:
        return symmetry
    rotations = symmetry._replace(kind="rotations")
    if point[name].shape[-1] > 1 and density.has(rotations):
        return rotations
    return density.first(_with_order(symmetry, target, point)) or symmetry


def _coordinates(target: Target, values: Sites) -> Sites:
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
    *batch, _, columns = point[name].shape
    others = [each for each in sorted(point) if each not in {name, *taken} and _may_turn(each, target, point, columns)]
    if name not in target.manifolds:  # as companions of orthonormal matrices these have been tried
        others = [each for each in others if each not in target.manifolds]
    for companions in _none_one_or_all(others):
        for vectors, independence in _ways(companions, tuple(batch), point):
            yield Symmetry("signs", (name, *companions), vectors, independent=independence)


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
    *batch, _, columns = point[symmetry.sites[0]].shape
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
    if not x.dim() or x.shape[-1] != columns or not x.numel():
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
        self._tolerances: dict[int, float] = {}
        self._flipped: dict[frozenset[str], Tensor] = {}

    def first(self, candidates: Iterator[Symmetry]) -> Symmetry | None:
        """Return the first of the candidates under which the density is invariant."""
        return next((candidate for candidate in candidates if self.has(candidate)), None)

    def has(self, symmetry: Symmetry) -> bool:
        """Return whether the density is the same after each of some random transformations."""
        # A generator of its own, so that the check does not change the random number stream of the process.
        generator = torch.Generator().manual_seed(0)
        return all(
            self._is_same(place, moved)
            for place, point in enumerate(self.points)
            for moved in _moved(symmetry, point, generator)
        )

    def has_even_rows(self, symmetry: Symmetry) -> bool:
        """Return whether the rows of the sites can change their signs as well, each on its own."""
        generator = torch.Generator().manual_seed(0)
        return all(
            self._is_same(place, _with_signs_of_rows(symmetry, point, generator))
            for place, point in enumerate(self.points)
            for _ in range(_SIGNS_AT_EACH)
        )

    def may_have(self, symmetry: Symmetry) -> bool:
        """Return false if some signs of columns show that the density is not invariant, by few evaluations in all.

        If it is the same at (WS, ZS) as at (W, Z) for all W and Z, it is the same at (WS, Z) as at (W, ZS): so each
        site is changed once, for all the companions that it may have.
        """
        first, *others = symmetry.sites
        if len(others) == 1:
            pair = self._energy_with_signs(frozenset([first])), self._energy_with_signs(frozenset(others))
        else:
            pair = self._energy_with_signs(frozenset(symmetry.sites)), self._energies[0]
        return not self._are_apart(*pair)

    def _energy_with_signs(self, names: frozenset[str]) -> Tensor:
        """Return the energy at the first point with random signs of the columns of some sites, the same for all."""
        if names not in self._flipped:
            point = self.points[0]
            columns = point[min(names)].shape[-1]
            signs = 2.0 * torch.randint(2, (columns,), generator=torch.Generator().manual_seed(0)) - 1
            signs[0] = -signs[1:2].sum() if columns > 1 else -1.0
            self._flipped[names] = self._energy(
                {**point, **{name: point[name] * signs.to(point[name]) for name in names}}
            )
        return self._flipped[names]

    @staticmethod
    def _are_apart(first: Tensor, second: Tensor) -> bool:
        bound = _QUICKLY_APART * float(torch.finfo(first.dtype).eps) ** 0.5 * max(1.0, abs(float(second)))
        return not bool((first - second).abs() <= bound)

    def _is_same(self, place: int, moved: Sites) -> bool:
        energy, expected = self._energy({**self.points[place], **moved}), self._energies[place]
        if self._are_apart(energy, expected):
            return False
        if place not in self._tolerances:
            self._tolerances[place] = self._tolerance(self.points[place], expected)
        return bool((energy - expected).abs() <= self._tolerances[place])

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
    """Yield the transformed sites; elements of a plate get independent transformations where the symmetry has them."""
    first = symmetry.matrices(symmetry.sites[0], point[symmetry.sites[0]])
    batch = first.shape[:-2]
    if symmetry.sites[0] in symmetry.vectors and symmetry.independent == "none":
        yield {symmetry.sites[0]: -point[symmetry.sites[0]]}
        return
    for _ in range(1 if symmetry.kind == "rotations" else _SIGNS_AT_EACH):
        size = (*(batch if symmetry.independent == "all" else ()), first.shape[-1])
        change = _random_change(symmetry.kind, size, generator).to(first)
        turns = change
        if symmetry.independent == "signs":
            turns = change @ _random_change("signs", (*batch, first.shape[-1]), generator).to(first)
        turned = {
            name: (symmetry.matrices(name, point[name]) @ turns).reshape(point[name].shape) for name in symmetry.sites
        }
        reordered = {name: (point[name].unsqueeze(-2) @ change.abs()).squeeze(-2) for name in symmetry.reordered}
        yield turned | reordered


def _with_signs_of_rows(symmetry: Symmetry, point: Sites, generator: torch.Generator) -> Sites:
    found = {}
    for name in symmetry.sites:
        rows = symmetry.matrices(name, point[name])
        signs = 2.0 * torch.randint(2, (*rows.shape[:-1], 1), generator=generator) - 1
        found[name] = (rows * signs.to(rows)).reshape(point[name].shape)
    return found


def _random_change(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if kind == "rotations":
        entries = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
        return torch.linalg.qr(entries)[0]
    change = torch.diag_embed(2.0 * torch.randint(2, shape, generator=generator) - 1)
    if kind == "signs":
        return change
    order = torch.rand(shape, generator=generator).argsort(-1)
    return change.gather(-1, order.unsqueeze(-2).expand_as(change))
