"""L-BFGS of many chains in parallel along manifolds (Nocedal & Wright, Numerical Optimization, 2006, algorithm 7.4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points, unit

_PAIRS = 10
_SUFFICIENT = 1e-4  # Armijo constant: fraction of the decrease predicted by the slope
_LONGER, _SHORTER = 2.0, 1 / 3
_SHORTEST, _LONGEST = 1e-12, 2.0**12


class QuasiNewtonState(NamedTuple):
    """Positions of all chains and their L-BFGS memory; each tensor has shape ``(chains, ...)``.

    Attributes:
        at: positions as rows, in the layout of `Points`.
        energy: potential energy at the positions.
        slope: gradient projected to tangent space.
        direction: search direction of the next step.
        step: step size, a multiple of ``direction``.
        moved: the last steps s, the newest last, ``(chains, pairs, coordinates)``.
        turned: the change y of the gradient over each step.
        weight: 1 / sᵀy of each pair, ``(chains, pairs, 1)``; 0 where there is no pair yet.
    """

    at: Tensor
    energy: Tensor
    slope: Tensor
    direction: Tensor
    step: Tensor
    moved: Tensor
    turned: Tensor
    weight: Tensor


class QuasiNewton:
    """Descent by L-BFGS: curvature is estimated from the last gradients, without further evaluations.

    Args:
        points: the manifolds and the potential energy that is minimised.
        pairs: number of steps kept in memory.
    """

    def __init__(self, points: Points[Any], pairs: int = _PAIRS) -> None:
        self._points, self._pairs = points, pairs

    def begin(self, at: Tensor) -> QuasiNewtonState:
        """Return the state at these points, with an empty memory and a first step of length 1."""
        energy, slope = self._points.energy_and_slope(at)
        chains, size = at.shape
        memory = [at.new_zeros(chains, self._pairs, width) for width in (size, size, 1)]
        return QuasiNewtonState(at, energy, slope, -unit(slope), torch.ones_like(energy), *memory)

    def advance(self, state: QuasiNewtonState) -> QuasiNewtonState:
        """Take one step.

        A chain whose step is rejected keeps its position, and its next step is a third as long. A step of which nothing
        is learned, since the curvature along it is negative, doubles the next one: nothing is known of the
        distance to a minimum there, as in the tails of Student's t.
        """
        points, (at, energy, slope, direction, step, *memory) = self._points, state
        there = points.moved(at, step.unsqueeze(1) * direction)
        energy_there, slope_there = points.energy_and_slope(there)
        good = energy_there <= energy + _SUFFICIENT * step * (slope * direction).sum(1)
        moved, turned = points.tangent(there, there - at), slope_there - points.tangent(there, slope)
        curvature = (moved * turned).sum(1)
        least = torch.finfo(at.dtype).tiny ** 0.5  # below it, squares of a step underflow
        learns = good & (curvature > (1e-10 * moved.norm(dim=1) * turned.norm(dim=1)).clamp(min=least))
        # Each chain has its own memory, which a rejected step leaves unchanged.
        memory = [
            torch.where(learns[:, None, None], torch.cat([old[:, 1:], new.unsqueeze(1)], 1), old)
            for old, new in zip(memory, (moved, turned, (1 / curvature).unsqueeze(1)), strict=True)
        ]
        at, slope = (torch.where(good.unsqueeze(1), *pair) for pair in ((there, at), (slope_there, slope)))
        following = points.tangent(at, two_loops(slope.unsqueeze(1), *memory).squeeze(1))
        downhill = (following * slope).sum(1, keepdim=True) < 0
        following = torch.where(downhill, following, -unit(slope))
        return QuasiNewtonState(
            at,
            torch.where(good, energy_there, energy),
            slope,
            torch.where(good.unsqueeze(1), following, direction),
            torch.where(learns, 1.0, torch.where(good, (_LONGER * step).clamp(max=_LONGEST), _SHORTER * step)),
            *memory,
        )

    def predicted_decrease(self, state: QuasiNewtonState) -> Tensor:
        r"""Return $\tfrac12 g^\top H g$, the decrease left on a quadratic with inverse Hessian estimate H."""
        predicted = -(state.slope * state.direction).sum(1) / 2
        return torch.where(state.step > _SHORTEST, predicted, 0.0)


def two_loops(vectors: Tensor, moved: Tensor, turned: Tensor, weight: Tensor) -> Tensor:
    """Return -H times vectors ``(chains, count, coordinates)`` by the two-loop recursion; the last pair is newest."""
    direction, shares = vectors, []
    pairs = list(zip(*(part.unsqueeze(2).unbind(1) for part in (moved, turned, weight)), strict=True))
    for s, y, rho in reversed(pairs):
        shares.append(rho * (s * direction).sum(2, keepdim=True))
        direction = direction - shares[-1] * y
    _, last, newest = pairs[-1]
    scale = 1 / (newest * last.square().sum(2, keepdim=True))
    direction = torch.where(newest > 0, scale * direction, unit(direction))
    for (s, y, rho), share in zip(pairs, reversed(shares), strict=True):
        direction = direction + (share - rho * (y * direction).sum(2, keepdim=True)) * s
    return -direction
