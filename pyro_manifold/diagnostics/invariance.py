"""Invariance of a density under transformations of columns, by evaluations at a few points."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_manifold.compiled import FactorisationError, effect_of_rounding
from pyro_manifold.density import ModelTarget, Sites, Target, is_latent
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry
from pyro_manifold.manifolds import SpecialOrthogonal, with_positive_determinant

_SIGNS_AT_EACH = 4
_QUICKLY_APART = 10.0  # times half the digits: a larger difference is not rounding, whatever the model
_UNITS_OF_ROUNDING = 32.0
_SITES_IN_PAIRS = 4
_COARSE = 1e-2  # a tolerance in which the change of a prior may be lost


class Invariance:
    """The density of a target at some points, those where it is finite."""

    def __init__(self, target: Target, points: list[Sites]) -> None:
        self._target = target
        energies = [self._energy(point) for point in points]
        self.points = [point for point, energy in zip(points, energies, strict=True) if energy.isfinite()]
        self._energies = [energy for energy in energies if energy.isfinite()]
        self._tolerances: dict[int, float] = {}
        self._flipped: dict[tuple[frozenset[tuple[str, str]], bool], Tensor] = {}

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

    def is_largest_at_zero(self, symmetry: Symmetry) -> bool:
        """Return whether the density is larger where the sites are 0 than at each point: both signs are one mode."""
        zeros = [{name: torch.zeros_like(point[name]) for name in symmetry.sites} for point in self.points]
        at_zero = [self._energy({**point, **zero}) for point, zero in zip(self.points, zeros, strict=True)]
        return all(bool(zero < energy) for zero, energy in zip(at_zero, self._energies, strict=True))

    def may_have(self, symmetry: Symmetry) -> bool:
        """Return false if some signs of columns show that the density is not invariant, by few evaluations in all.

        If it is the same at (WS, ZS) as at (W, Z) for all W and Z, it is the same at (WS, Z) as at (W, ZS): so each
        site is changed once, for all the companions that it may have, and each pair once, for three or four sites.
        """
        count = len(symmetry.sites)
        halves = [symmetry.sites[: (count + 1) // 2], symmetry.sites[(count + 1) // 2 :]]
        if not 2 <= count <= _SITES_IN_PAIRS:
            halves = [symmetry.sites, ()]
        pair = [self._energy_with_signs(symmetry, half) if half else self._energies[0] for half in halves]
        return not all(energy.isfinite() for energy in pair) or not self._are_apart(*pair)

    def _energy_with_signs(self, symmetry: Symmetry, names: tuple[str, ...]) -> Tensor:
        """Return the energy at the first point with random signs of the columns of some sites, the same for all."""
        places = {**dict.fromkeys(symmetry.transposed, "-2"), **dict(symmetry.axes)}
        places |= {name: f"whole {count}" for name, count in symmetry.whole}
        key = frozenset((name, str(places.get(name))) for name in names), symmetry.proper
        if key not in self._flipped:
            point = self.points[0]
            matrices = {name: symmetry.matrices(name, point[name]) for name in names}
            columns = matrices[names[0]].shape[-1]
            signs = 2.0 * torch.randint(2, (columns,), generator=torch.Generator().manual_seed(0)) - 1
            signs[0] = -signs[1:2].sum() if columns > 1 else -1.0
            if symmetry.proper:
                signs[-1] *= signs.prod()
            flipped = {name: symmetry.put_back(name, x * signs.to(x), point[name]) for name, x in matrices.items()}
            self._flipped[key] = self._energy({**point, **flipped})
        return self._flipped[key]

    def signs_go_with(self, scale: str, symmetry: Symmetry) -> tuple[str, ...] | None:
        """Return the site of a symmetry whose columns change signs with those of scales, alone or with no site.

        Returns:
            The scales and the site, if there is one; None if the signs of the scales are identified.
        """
        # Signs of any columns would make a rotation a reflection.
        rotations = [name for name, each in self._target.manifolds.items() if isinstance(each, SpecialOrthogonal)]
        for name in (None, *(each for each in symmetry.sites if each not in rotations)):
            found = (scale,) if name is None else (scale, name)
            generator = torch.Generator().manual_seed(0)
            if all(
                self._is_same(place, symmetry.with_signs(found, point, _random_signs(point[scale], generator)))
                for place, point in enumerate(self.points)
                for _ in range(_SIGNS_AT_EACH)
            ):
                return found
        return None

    def has_turns(self, name: str) -> bool:
        """Return whether the density is the same after whole turns of all angles of a site, and not after a radian."""
        generator = torch.Generator().manual_seed(0)
        varies = False
        for point, expected in zip(self.points, self._energies, strict=True):
            turns = 2 * torch.pi * _random_signs(point[name], generator)
            if self._are_apart(self._energy({**point, name: point[name] + turns}), expected):
                return False
            varies |= self._are_apart(self._energy({**point, name: point[name] + 1}), expected)
        return varies

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
        if bool((energy - expected).abs() > self._tolerances[place]):
            return False
        return self._tolerances[place] < _COARSE or self._terms_are_same(self.points[place], moved)

    def _terms_are_same(self, point: Sites, moved: Sites) -> bool:
        """Return whether the terms of a model are the same, each within the rounding of its own.

        In a large sum the rounding of the likelihood hides a prior that is not the same.
        """
        before, after = self._terms(point), self._terms({**point, **moved})
        for name in before.keys() & after.keys():
            change = (after[name].sum() - before[name].sum()).abs()
            size = float(before[name].abs().sum().clamp(min=1.0))
            if not bool(change <= 2 * _UNITS_OF_ROUNDING * torch.finfo(change.dtype).eps * size):
                return False
        return True

    def _terms(self, point: Sites) -> dict[str, Tensor]:
        """Return the log densities of the sites of a model; empty for a density that is not a sum of these."""
        if not isinstance(self._target, ModelTarget):
            return {}
        values = self._target.values(point)
        model = poutine.block(poutine.trace(poutine.condition(self._target.program, data=values)).get_trace)
        with torch.no_grad(), pyro.validation_enabled(False):
            trace = model()
            sampled = [name for name, site in trace.nodes.items() if site["type"] == "sample"]
            if any(is_latent(trace.nodes[name]) for name in sampled):
                return {}
            trace.compute_log_prob()
        return {name: trace.nodes[name]["log_prob"] for name in sampled if "log_prob" in trace.nodes[name]}

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
    if symmetry.is_one_sign and symmetry.independent == "none":
        yield {name: -point[name] for name in symmetry.sites}
        return
    for _ in range(1 if symmetry.kind == "rotations" else _SIGNS_AT_EACH):
        size = (*(batch if symmetry.independent == "all" else ()), first.shape[-1])
        change = _random_change(symmetry.kind, size, generator).to(first)
        turns = change
        if symmetry.independent == "signs":
            turns = change @ _random_change("signs", (*batch, first.shape[-1]), generator).to(first)
        turns = with_positive_determinant(turns) if symmetry.proper else turns
        turned = {
            name: symmetry.put_back(name, symmetry.matrices(name, point[name]) @ turns, point[name])
            for name in symmetry.sites
        }
        values = {name: symmetry.columns_last(name, point[name]) for name in symmetry.reordered}
        reordered = {name: (x.unsqueeze(-2) @ change.abs()).squeeze(-2) for name, x in values.items()}
        yield turned | {name: symmetry.columns_back(name, x) for name, x in reordered.items()}


def _with_signs_of_rows(symmetry: Symmetry, point: Sites, generator: torch.Generator) -> Sites:
    found = {}
    for name in symmetry.sites:
        rows = symmetry.matrices(name, point[name])
        signs = _random_signs(rows[..., :1], generator)
        found[name] = symmetry.put_back(name, rows * signs, point[name])
    return found


def _random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return (2.0 * torch.randint(2, like.shape, generator=generator) - 1).to(like)


def _random_change(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if kind == "rotations":
        entries = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
        return torch.linalg.qr(entries)[0]
    change = torch.diag_embed(2.0 * torch.randint(2, shape, generator=generator) - 1)
    if kind == "signs":
        return change
    order = torch.rand(shape, generator=generator).argsort(-1)
    return change.gather(-1, order.unsqueeze(-2).expand_as(change))
