"""Comparison of the gradient with difference quotients, which finds models that cut it.

A `.detach()` or a number taken out of a tensor leaves the density as it is and changes its gradient, so that chains
follow forces of another density: with a Metropolis test they hardly move, and without one they have another
distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density.batched import PotentialFunction, Sites, value_alone, value_and_gradient
from pyro_manifold.manifolds import Manifold

_SCREENED = 2  # points at which all sites are compared together
_POINTS = 6  # points at which each site is compared
_WRONG = 5  # of them have to differ: at some the density may have a kink, or a probability be 1 to the last bit
_NEAR_ZERO = 0.1  # share of the root mean square of a site's gradient below which an entry counts as this share
_DETERMINED = 2e-3  # largest error of a difference quotient that is compared
_STEPS = (0.2, 0.27, 0.33, 0.4)  # powers of the rounding unit
_DIFFERENT = 1e-2


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

    The gradient is compared with difference quotients along a direction of all sites, at two points that a trace has
    not seen. If they differ at one of them, sites are compared one by one, and have to differ at five points of six.
    The direction gives each entry the same share of the slope, as far as its gradient is not near 0, so that the cut
    of one entry among ten is seen in most cases. A quotient is compared only if that of half the step agrees with it,
    so that rounding and jumps of the density are not taken for a wrong gradient.

    Args:
        potential_fn: potential energy of one chain.
        positions: positions of all chains.
        manifolds: manifolds of the sites that have one.

    Raises:
        ValueError: with the name of the site.
    """
    noise = torch.Generator().manual_seed(0)
    points = _finite_points(potential_fn, positions, manifolds, noise)
    screened = list(islice(points, _SCREENED))
    if not any(_slope_if_wrong(potential_fn, point, manifolds, list(positions), noise) for point in screened):
        return
    tested = [*screened, *islice(points, _POINTS - _SCREENED)]
    wrong: dict[str, Slope] = {}
    for name in positions:
        compared = (_slope_if_wrong(potential_fn, point, manifolds, [name], noise) for point in tested)
        found = [slope for slope in compared if slope is not None]
        if len(found) >= _WRONG:
            wrong[name] = found[0]
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
        if name in manifolds:
            v = manifolds[name].tangent_projection(point[name], _like(point[name], noise))
        else:
            v = _with_equal_shares(gradient[name], noise)
        # Equal shares of all sites, as the slope along a site of small influence would be lost among the others'.
        v = v / (gradient[name] * v).sum().abs().clamp(min=1)
        direction[name] = v
        parts.append(float((gradient[name] * v).sum()))
    epsilon = max(float(torch.finfo(x.dtype).eps) for x in (energy, *direction.values()))
    found, size = sum(parts), sum(map(abs, parts))
    terms = sum(float((gradient[name] * point[name]).abs().sum()) for name in names)

    def quotient(step: float) -> tuple[float, float]:
        """Return the difference quotient, and the largest of the energies whose rounding it has."""
        ahead, behind = (
            value_alone(potential_fn, {**point, **_moved(point, direction, manifolds, sign * step)}) for sign in (1, -1)
        )
        return float((ahead - behind) / (2 * step)), float(torch.stack([energy, ahead, behind]).abs().max())

    for power in _STEPS:
        step = epsilon**power
        (wide, largest), (narrow, _) = quotient(step), quotient(step / 2)
        scale = max(size, abs(narrow))
        error = abs(wide - narrow) + epsilon * (8 * largest + terms) / step
        if error <= _DETERMINED * scale:
            return Slope(narrow, found) if abs(narrow - found) > _DIFFERENT * scale else None
    return None


def _with_equal_shares(gradient: Tensor, noise: torch.Generator) -> Tensor:
    """Return a direction in which all entries of a gradient have about the same share of the slope."""
    size = gradient.square().mean().sqrt()
    if not size > 0:
        return _like(gradient, noise)
    return gradient.sign() / gradient.abs().clamp(min=_NEAR_ZERO * float(size))


def _moved(point: Sites, direction: Sites, manifolds: Mapping[str, Manifold], step: float) -> Sites:
    return {
        name: manifolds[name].retraction(point[name], step * v) if name in manifolds else point[name] + step * v
        for name, v in direction.items()
    }
