"""Identification of a target by its sites, density, gradient and transforms at reference points, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled import effect_of_rounding
from pyro_manifold.density import Sites, Target, value_and_gradient
from pyro_manifold.manifolds import Manifold
from pyro_manifold.store import Serialisable, check_entries

Values = dict[str, Tensor]
"""Values to compare, with a row for each point; keys are the names used in messages."""

_LOG_DENSITY = "log density"
_METRIC = "metric"
_VALUE_OF = "the value of '{}'"
_SCALES = (0.1, 0.3, 1.0)
_TIMES_ROUNDING = 10.0
_NAMED = 3


class AnotherDensityError(ValueError):
    """Error if the density differs from that of the run so far.

    Args:
        difference: clause that describes where the two differ and by how much.
    """

    def __init__(self, difference: str) -> None:
        self.difference = difference
        super().__init__(
            f"The saved run has another density ({difference}): restore it into a run of the same model and data."
        )


class ReferencePoints(NamedTuple):
    """Log density, gradient and constrained values of a target at a few points.

    Attributes:
        position: ``{site: (points, ...)}``; sites on manifolds are on their manifold, others in unconstrained space.
        manifolds: descriptions of the manifolds of the sites that have one.
        values: log density, its gradient, and constrained values of each site at the points; NaN where the model fails.
    """

    position: Sites
    manifolds: dict[str, str]
    values: Values

    @classmethod
    def near(cls, target: Target, start: Sites) -> ReferencePoints:
        """Evaluate the model near initial values, perturbed by noise of several scales from a fixed seed.

        Minibatched data are evaluated on a fixed batch of the target.

        Args:
            target: target to evaluate.
            start: ``{site: (chains, ...)}``.
        """
        noise = torch.Generator().manual_seed(0)
        points = [_moved(start, row, scale, target, noise) for row, scale in enumerate(_SCALES)] if start else []
        position = {name: torch.stack([point[name] for point in points]) for name in start}
        return cls(position, _in_words(target.manifolds), values_at(target, position))

    @classmethod
    def restored(cls, saved: Serialisable, device: torch.device) -> ReferencePoints:
        """Return the reference points of a checkpoint.

        Raises:
            ValueError: if the saved state is not that of reference points.
        """
        check_entries(saved, cls._fields, "the reference points")
        for name, kind in (("position", Tensor), ("manifolds", str), ("values", Tensor)):
            if not isinstance(saved[name], dict) or not all(isinstance(part, kind) for part in saved[name].values()):
                raise ValueError(f"The saved {name} of the reference points are damaged: restore another checkpoint.")
        position, values = ({site: x.to(device) for site, x in saved[name].items()} for name in ("position", "values"))
        return cls(position, dict(saved["manifolds"]), values)

    def difference(self, target: Target, start: Sites) -> str | None:
        """Describe how a target differs from these points; None if only by rounding.

        Args:
            target: target to compare.
            start: its initial values, ``{site: (chains, ...)}``.
        """
        before, now = (
            _sites_in_words(self.position, self.manifolds),
            _sites_in_words(start, _in_words(target.manifolds)),
        )
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return f"the site '{name}' was {before.get(name, 'none')}, and is {now.get(name, 'none')}"
        if not self.position:
            return None
        return difference(lambda sites: values_at(target, sites), self.position, self.values, "at reference point {}")


def values_at(target: Target, position: Sites) -> Values:
    """Evaluate log density, gradient and constrained values at each point by the model itself, not by its graph."""
    rows = [_at(target, dict(zip(position, row, strict=True))) for row in zip(*position.values(), strict=True)]
    density = {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}
    return density | {_VALUE_OF.format(name): x for name, x in _as_the_model_has(target, position).items()}


def _as_the_model_has(target: Target, position: Sites) -> Sites:
    try:
        return {name: value.detach() for name, value in target.values(position).items()}
    except Exception:  # a user-defined transform can fail in any way
        return {name: torch.full_like(value, torch.nan) for name, value in position.items()}


def _in_words(manifolds: Mapping[str, Manifold]) -> dict[str, str]:
    """Describe manifolds by type and attributes, since the repr of a user-defined class may contain an address."""
    found = {}
    for name, manifold in manifolds.items():
        numbers = [
            f"{key}={x!r}"
            for key, x in sorted(getattr(manifold, "__dict__", {}).items())
            if isinstance(x, bool | int | float | str)
        ]
        found[name] = f"{type(manifold).__name__}({', '.join(numbers)})"
    return found


def _sites_in_words(position: Sites, manifolds: Mapping[str, str]) -> dict[str, str]:
    return {
        name: f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])} "
        + (f"on {manifolds[name]}" if name in manifolds else "in unconstrained space")
        for name, x in position.items()
    }


def named(log_density: Tensor, gradient: Sites, metric: Tensor | None = None) -> Values:
    """Collect log density, gradient and metric under the names used in messages."""
    slopes = {f"'{name}'": value for name, value in gradient.items()}
    return {_LOG_DENSITY: log_density, **slopes, **({} if metric is None else {_METRIC: metric})}


def difference(function: Callable[[Sites], Values], position: Sites, recorded: Values, place: str) -> str | None:
    """Describe how the values of a function differ from those recorded; None if only by rounding.

    Values agree if they are equal up to half the digits of their dtype, relative to each entry, or up to the effect of
    rounding errors. The tolerance is not relative to the largest entry, since parameters may be identified by the data
    to very different degrees. Entries that are infinite or NaN on both sides are not compared.

    Args:
        function: function from a position to values.
        position: ``{site: (points, ...)}``.
        recorded: recorded values at that position.
        place: description of a point, with ``{}`` for its number.
    """
    found = function(position)
    if not _differing(found, recorded, {}):
        return None

    def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(dict(zip(position, inputs, strict=True))).values())

    rounding = effect_of_rounding(flat, list(position.values()), list(found.values()))
    differing = _differing(found, recorded, dict(zip(found, rounding, strict=True)))
    return _clause(found, recorded, differing, place) if differing else None


def _moved(start: Sites, row: int, scale: float, target: Target, noise: torch.Generator) -> Sites:
    point = {}
    for name, value in start.items():
        own = value[row % len(value)]
        point[name] = own + scale * torch.randn(own.shape, generator=noise, dtype=own.dtype, device="cpu").to(own)
    return {name: target.manifolds[name].projection(x) if name in target.manifolds else x for name, x in point.items()}


def _at(target: Target, point: Sites) -> Values:
    try:
        energy, gradient = value_and_gradient(target.potential_fn, point)
    except Exception:  # a model can fail in any way outside the typical set
        energy = next(iter(point.values())).new_full((), torch.nan)
        gradient = {name: torch.full_like(value, torch.nan) for name, value in point.items()}
    return named(-energy, gradient)


def _differing(found: Values, recorded: Values, rounding: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return masks of differing entries, for the values that have any."""
    masks = {name: _beyond(found[name], value, rounding.get(name)) for name, value in recorded.items()}
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def _beyond(found: Tensor, recorded: Tensor, rounding: Tensor | None) -> Tensor:
    if found.shape != recorded.shape or found.dtype != recorded.dtype:
        return torch.ones(max(1, len(recorded)), dtype=torch.bool)
    if not recorded.numel():
        return torch.zeros_like(recorded, dtype=torch.bool)
    allowed = torch.finfo(recorded.dtype).eps ** 0.5 * recorded.abs().nan_to_num(0.0, 0.0).clamp(min=1.0)
    distance = (found - recorded).abs()
    near = distance <= allowed
    if rounding is not None:
        near = near | (distance <= _TIMES_ROUNDING * rounding) | rounding.isinf()
    return (found.isfinite() | recorded.isfinite()) & ~near


def _clause(found: Values, recorded: Values, differing: Mapping[str, Tensor], place: str) -> str:
    point = min(int(mask.nonzero()[0, 0]) for mask in differing.values())
    clauses = [place.format(point)]
    if _LOG_DENSITY in differing:
        before, now = float(recorded[_LOG_DENSITY][point]), float(found[_LOG_DENSITY][point])
        by = f", {now - before:+.2g}" if math.isfinite(now) else ""
        clauses.append(f"the log density was {before:.6g} and is {now:.6g}{by}")
    sites = [name for name in differing if name.startswith("'")]
    for name in [name for name in differing if name not in (_LOG_DENSITY, _METRIC, *sites)][:_NAMED]:
        clauses.append(f"{name} {_change(found[name], recorded[name], differing[name])}")
    if sites:
        more = f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
        largest = max(float((found[name] - recorded[name]).abs().max()) for name in sites)
        clauses.append(f"the gradient of {', '.join(sites[:_NAMED])}{more} differs by up to {largest:.2g}")
    if _METRIC in differing:
        clauses.append("the metric differs")
    return ", ".join(clauses)


def _change(found: Tensor, recorded: Tensor, differing: Tensor) -> str:
    if found.shape != recorded.shape or found.dtype != recorded.dtype:
        return f"was {recorded.dtype} {tuple(recorded.shape[1:])} and is {found.dtype} {tuple(found.shape[1:])}"
    place = tuple(differing.nonzero()[0])
    return f"was {float(recorded[place]):.6g} and is {float(found[place]):.6g}"
