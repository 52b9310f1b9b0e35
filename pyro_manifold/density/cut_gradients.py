"""Comparison of the gradient with difference quotients, which finds models that cut it.

A `.detach()` or a number taken out of a tensor leaves the density as it is and changes its gradient, so that chains
follow forces of another density: with a Metropolis test they hardly move, and without one they have another
distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density.batched import PotentialFunction, Sites, value_alone, value_and_gradient
from pyro_manifold.manifolds import Manifold

_POINTS = 3  # at which a gradient has to be wrong: at one of them the density may have a kink or a jump
_STEPS = (0.2, 0.27, 0.33, 0.4)  # powers of the rounding unit
_DETERMINED = 2e-3  # largest error of a difference quotient that is compared
_DIFFERENT = 2e-2


class Slope(NamedTuple):
    """Derivative of the potential energy along a direction.

    Attributes:
        expected: by difference quotients.
        found: by the gradient.
    """

    expected: float
    found: float


def refuse_cut_gradients(potential_fn: PotentialFunction, positions: Sites, manifolds: Mapping[str, Manifold]) -> None:
    """Raise ValueError if the gradient of a site is not that of the potential energy.

    The gradient is compared with difference quotients along a direction of all sites, at a point that a trace has not
    seen. If they differ, sites are compared one by one, at several points. A quotient is compared only if that of half
    the step agrees with it, so that rounding and jumps of the density are not taken for a wrong gradient.

    Args:
        potential_fn: potential energy of one chain.
        positions: positions of all chains.
        manifolds: manifolds of the sites that have one.

    Raises:
        ValueError: with the name of the site.
    """
    noise = torch.Generator().manual_seed(0)
    points = _finite_points(potential_fn, positions, manifolds, noise)
    first = next(points, None)
    if first is None or _slope_if_wrong(potential_fn, first, manifolds, list(positions), noise) is None:
        return
    tested = [first, *[point for _, point in zip(range(_POINTS - 1), points, strict=False)]]
    wrong: dict[str, Slope] = {}
    for name in positions:
        found = [_slope_if_wrong(potential_fn, point, manifolds, [name], noise) for point in tested]
        if len(tested) == _POINTS and all(found):
            wrong[name] = next(slope for slope in found if slope is not None)
    if wrong:
        slope = next(iter(wrong.values()))
        raise ValueError(
            f"Site {', '.join(map(repr, wrong))}: the gradient of the log density is {0.0 - slope.found:.3g} along a "
            f"direction in which its difference quotient is {0.0 - slope.expected:.3g}, as where a model cuts "
            "gradients: compute from the site without .detach(), .data, .item(), torch.no_grad(), NumPy and "
            "torch.tensor([...]), which torch.stack([...]) replaces, or take a kernel without gradients, GeodesicSlice."
        )


def _finite_points(
    potential_fn: PotentialFunction, positions: Sites, manifolds: Mapping[str, Manifold], noise: torch.Generator
) -> Iterator[tuple[Sites, Tensor, Sites]]:
    """Yield points near positions of chains, with energy and gradient, where these are finite."""
    chains = len(next(iter(positions.values())))
    for attempt in range(4 * _POINTS):
        point = {name: _near(x[attempt % chains], 0.1, manifolds.get(name), noise) for name, x in positions.items()}
        energy, gradient = value_and_gradient(potential_fn, point)
        if energy.isfinite() and all(bool(x.isfinite().all()) for x in gradient.values()):
            yield point, energy, gradient


def _near(x: Tensor, scale: float, manifold: Manifold | None, noise: torch.Generator) -> Tensor:
    moved = x + scale * _like(x, noise)
    return moved if manifold is None else manifold.projection(moved)


def _like(x: Tensor, noise: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=noise, dtype=x.dtype).to(x.device)


def _slope_if_wrong(
    potential_fn: PotentialFunction,
    at: tuple[Sites, Tensor, Sites],
    manifolds: Mapping[str, Manifold],
    names: list[str],
    noise: torch.Generator,
) -> Slope | None:
    """Return the derivatives along a direction of some sites, if the gradient's is wrong; else None."""
    point, energy, gradient = at
    direction, parts = {}, []
    for name in names:
        v = _like(point[name], noise)
        v = v if name not in manifolds else manifolds[name].tangent_projection(point[name], v)
        # Equal shares of all sites, as the slope along a site of small influence would be lost among the others'.
        v = v / (gradient[name] * v).sum().abs().clamp(min=1)
        direction[name] = v
        parts.append(float((gradient[name] * v).sum()))
    epsilon = max(float(torch.finfo(x.dtype).eps) for x in (energy, *direction.values()))
    found, size = sum(parts), sum(map(abs, parts))
    rounding = 8 * abs(float(energy)) + sum(float((gradient[name] * point[name]).abs().sum()) for name in names)

    def quotient(step: float) -> float:
        def moved(step: float) -> Tensor:
            return value_alone(potential_fn, {**point, **_moved(point, direction, manifolds, step)})

        return float((moved(step) - moved(-step)) / (2 * step))

    for power in _STEPS:
        step = epsilon**power
        wide, narrow = quotient(step), quotient(step / 2)
        scale = max(size, abs(narrow))
        error = abs(wide - narrow) + epsilon * rounding / step
        if error <= _DETERMINED * scale:
            return Slope(narrow, found) if abs(narrow - found) > _DIFFERENT * scale else None
    return None


def _moved(point: Sites, direction: Sites, manifolds: Mapping[str, Manifold], step: float) -> Sites:
    return {
        name: manifolds[name].retraction(point[name], step * v) if name in manifolds else point[name] + step * v
        for name, v in direction.items()
    }
