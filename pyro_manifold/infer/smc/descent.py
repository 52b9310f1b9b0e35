r"""Descents of many points at once, by BFGS (Nocedal & Wright, Numerical Optimization, 2006, algorithm 6.1).

All points are rows ``(points, d)``; each has its own inverse Hessian ``(points, d, d)`` and its own line search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points ``(points, d)`` to values ``(points,)`` and gradients ``(points, d)``."""

_SUFFICIENT = 1e-4
_CURVATURE = 1e-10
_HALVINGS = 30


class Minima(NamedTuple):
    """Where descents ended.

    Attributes:
        points: ``(points, d)``.
        values: ``(points,)``.
        gradients: ``(points, d)``.
        evaluations: of the objective, each of all points.
    """

    points: Tensor
    values: Tensor
    gradients: Tensor
    evaluations: int


def descend(objective: Objective, start: Tensor, iterations: int, tolerance: float) -> Minima:
    """Go down from each point until the Newton decrement ½ gᵀHg is below a tolerance, at most so many iterations.

    Args:
        objective: what to make small; not finite where a point must not go.
        start: ``(points, d)``.
        iterations: the most.
        tolerance: of the objective, in its own unit.
    """
    x = start
    value, gradient = objective(x)
    evaluations = 1
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    # The first step has length 1, or what the line search makes of it.
    inverse = identity / gradient.norm(dim=-1).clamp(min=1.0)[:, None, None]
    fresh = torch.ones_like(value, dtype=torch.bool)
    for _ in range(iterations):
        direction = -(inverse @ gradient.unsqueeze(-1)).squeeze(-1)
        slope = (direction * gradient).sum(-1)
        active = -slope / 2 > tolerance
        if not bool(active.any()):
            break
        step, new_value, new_gradient, asked = _line_search(objective, x, value, direction, slope, active)
        evaluations += asked
        s, y = step[:, None] * direction, new_gradient - gradient
        moved = active & (step > 0)
        inverse = torch.where(moved[:, None, None], _updated(inverse, s, y, fresh, identity), inverse)
        # One that finds no lower point starts anew along its gradient.
        lost = active & (step == 0)
        inverse = torch.where(
            lost[:, None, None], identity / gradient.norm(dim=-1).clamp(min=1.0)[:, None, None], inverse
        )
        fresh = (fresh & ~moved) | lost
        x, value, gradient = (
            x + s,
            torch.where(moved, new_value, value),
            torch.where(moved[:, None], new_gradient, gradient),
        )
    return Minima(x, value, gradient, evaluations)


def _line_search(
    objective: Objective, x: Tensor, value: Tensor, direction: Tensor, slope: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The longest of 1, ½, ¼, … that lowers the value enough; 0 where none does."""
    step = torch.where(active, torch.ones_like(value), torch.zeros_like(value))
    for asked in range(1, _HALVINGS + 1):  # noqa: B007
        found, gradient = objective(x + step[:, None] * direction)
        good = (found <= value + _SUFFICIENT * step * slope) & torch.isfinite(found) & torch.isfinite(gradient).all(-1)
        if bool((good | ~active).all()):
            break
        step = torch.where(good | ~active, step, step / 2)
    return torch.where(good & active, step, torch.zeros_like(step)), found, gradient, asked


def _updated(inverse: Tensor, s: Tensor, y: Tensor, fresh: Tensor, identity: Tensor) -> Tensor:
    """The BFGS update; the identity in the unit of the first step where there was none before."""
    product = (s * y).sum(-1)
    usable = product > _CURVATURE * s.norm(dim=-1) * y.norm(dim=-1)
    unit = (product / y.square().sum(-1).clamp(min=1e-300))[:, None, None] * identity
    inverse = torch.where((fresh & usable)[:, None, None], unit, inverse)
    rho = torch.where(usable, 1 / product, torch.zeros_like(product))[:, None, None]
    factor = identity - rho * s.unsqueeze(-1) @ y.unsqueeze(-2)
    updated = factor @ inverse @ factor.mT + rho * s.unsqueeze(-1) @ s.unsqueeze(-2)
    return torch.where(usable[:, None, None], updated, inverse)
