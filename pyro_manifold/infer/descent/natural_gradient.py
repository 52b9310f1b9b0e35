r"""Damped natural gradients of many chains in parallel, along manifolds.

With G the Fisher information of a model's parameters plus the precision of their priors, a step is

$$ \delta = -(P G P + \lambda I)^{-1} \nabla U, $$

P the projection to tangent space. For a Normal likelihood G is the Gauss–Newton matrix, and this is the method of
Levenberg and Marquardt. The damping λ decreases after each step that attains at least a tenth of the decrease predicted
by the quadratic model, and increases after any other step. A step that does not decrease the energy is rejected. The
initial λ is that of Madsen, Nielsen & Tingleff, Methods for
nonlinear least squares problems, 2004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.infer.descent.points import Points

_FIRST_DAMPING = 1e-3  # multiple of the largest diagonal entry of G
_LESS, _MORE = 3.0, 2.0
_LEAST, _MOST = 1e-12, 1e12  # multiples of the same entry
_SUFFICIENT, _GOOD = 1e-3, 0.1  # fractions of the decrease predicted by the quadratic model


class NaturalGradientState(NamedTuple):
    """Positions of all chains, with energy, gradient and metric there; each tensor has shape ``(chains, ...)``.

    Attributes:
        at: positions as rows, in the layout of `Points`.
        energy: potential energy at the positions.
        slope: gradient projected to tangent space.
        metric: P G P + (I - P).
        damping: λ.
        unit: unit of λ: the largest diagonal entry of the first metric.
    """

    at: Tensor
    energy: Tensor
    slope: Tensor
    metric: Tensor
    damping: Tensor
    unit: Tensor


class NaturalGradient:
    """Descent by damped natural gradients (Levenberg–Marquardt on a product of manifolds).

    Args:
        points: the manifolds and the potential energy that is minimised.
        metric: maps positions ``(chains, coordinates)`` to G, ``(chains, coordinates, coordinates)``. It is evaluated
            only at initial and accepted positions.
    """

    def __init__(self, points: Points[Any], metric: Callable[[Tensor], Tensor]) -> None:
        self._points, self._metric = points, metric

    def begin(self, at: Tensor) -> NaturalGradientState:
        """Return the state at these points, with the initial damping."""
        energy, slope = self._points.energy_and_slope(at)
        metric = self._metric_at(at)
        unit = metric.diagonal(dim1=-2, dim2=-1).amax(-1)
        return NaturalGradientState(at, energy, slope, metric, _FIRST_DAMPING * unit, unit)

    def advance(self, state: NaturalGradientState) -> NaturalGradientState:
        """Take one step; a chain whose step is rejected stays where it is, with more damping."""
        at, energy, slope, metric, damping, unit = state
        identity = torch.eye(at.shape[1], dtype=at.dtype, device=at.device)
        damped = metric + damping[:, None, None] * identity
        delta = -by_matrix(torch.linalg.solve_ex, damped, slope.unsqueeze(-1))[0].squeeze(-1)
        there = self._points.moved(at, delta)
        energy_there, slope_there = self._points.energy_and_slope(there)
        predicted = -(slope * delta).sum(1) - (delta * (metric @ delta.unsqueeze(-1)).squeeze(-1)).sum(1) / 2
        kept = (energy - energy_there) / predicted
        good, accurate = kept > _SUFFICIENT, kept > _GOOD
        rows = good.nonzero().squeeze(1)
        if len(rows):
            metric = metric.index_copy(0, rows, self._metric_at(there[rows]))
        return NaturalGradientState(
            torch.where(good.unsqueeze(1), there, at),
            torch.where(good, energy_there, energy),
            torch.where(good.unsqueeze(1), slope_there, slope),
            metric,
            torch.where(accurate, damping / _LESS, damping * _MORE).clamp(_LEAST * unit, _MOST * unit),
            unit,
        )

    def predicted_decrease(self, state: NaturalGradientState) -> Tensor:
        r"""Return the predicted decrease $\tfrac12 g^\top G^{-1} g$; 0 where the damping is at its maximum."""
        step = by_matrix(torch.linalg.solve_ex, state.metric, state.slope.unsqueeze(-1))[0].squeeze(-1)
        return torch.where(state.damping < _MOST * state.unit, (state.slope * step).sum(1) / 2, 0.0)

    def _metric_at(self, at: Tensor) -> Tensor:
        """Return the metric projected to tangent space, plus the identity on the normal space."""
        identity = torch.eye(at.shape[1], dtype=at.dtype, device=at.device)
        chains, size = at.shape
        # Projecting every basis vector gives the projection matrix.
        bases = identity.expand(chains, size, size).reshape(-1, size)
        projection = self._points.tangent(at.repeat_interleave(size, 0), bases).reshape(chains, size, size)
        metric = self._metric(at).nan_to_num(0.0, 0.0, 0.0)
        return projection @ metric @ projection + identity - projection
