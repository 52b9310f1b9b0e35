r"""Damped natural gradients of many chains at once, along manifolds.

With G the Fisher information of a model's parameters plus the precision of their priors, a step is

.. math:: \delta = -(P G P + \lambda I)^{-1} \nabla U,

P the projection to tangent space. For a Normal likelihood G is the Gauss–Newton matrix, and this is the method of
Levenberg and Marquardt. The damping λ falls with each step that keeps a tenth of what the quadratic promises and grows
with others; one that leads no lower is not taken. The first λ is as in Madsen, Nielsen & Tingleff, Methods for
non-linear least squares problems, 2004.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points

_FIRST_DAMPING = 1e-3  # of the largest entry on G's diagonal
_LESS, _MORE = 3.0, 2.0
_LEAST, _MOST = 1e-12, 1e12  # of the same
_SUFFICIENT, _GOOD = 1e-3, 0.1  # shares of the decrease that the quadratic promises


class NaturalGradientState(NamedTuple):
    """Where chains are and what the metric is there; each tensor ``(chains, ...)``.

    Attributes:
        at: position, as `Points` has it.
        energy: there.
        slope: gradient in tangent space.
        metric: P G P + (I - P).
        damping: λ.
        unit: of λ, the largest entry of the first metric's diagonal.
    """

    at: Tensor
    energy: Tensor
    slope: Tensor
    metric: Tensor
    damping: Tensor
    unit: Tensor


class NaturalGradient:
    """The descent by damped natural gradients: the metric knows in which directions the model is stiff.

    Args:
        points: where to, and how high.
        metric: of rows ``(chains, coordinates)``: G, ``(chains, coordinates, coordinates)``. Asked for where a step is
            taken, and only there.
    """

    def __init__(self, points: Points[Any], metric: Callable[[Tensor], Tensor]) -> None:
        self._points, self._metric = points, metric

    def begin(self, at: Tensor) -> NaturalGradientState:
        """At some points."""
        energy, slope = self._points.energy_and_slope(at)
        metric = self._metric_at(at)
        unit = metric.diagonal(dim1=-2, dim2=-1).amax(-1)
        return NaturalGradientState(at, energy, slope, metric, _FIRST_DAMPING * unit, unit)

    def advance(self, state: NaturalGradientState) -> NaturalGradientState:
        """The next step, or from the same place more damping."""
        at, energy, slope, metric, damping, unit = state
        identity = torch.eye(at.shape[1], dtype=at.dtype, device=at.device)
        damped = metric + damping[:, None, None] * identity
        delta = -torch.linalg.solve_ex(damped, slope.unsqueeze(-1))[0].squeeze(-1)
        there = self._points.moved(at, delta)
        energy_there, slope_there = self._points.energy_and_slope(there)
        promised = -(slope * delta).sum(1) - (delta * (metric @ delta.unsqueeze(-1)).squeeze(-1)).sum(1) / 2
        kept = (energy - energy_there) / promised
        good, trusted = kept > _SUFFICIENT, kept > _GOOD
        rows = good.nonzero().squeeze(1)
        if len(rows):
            metric = metric.index_copy(0, rows, self._metric_at(there[rows]))
        return NaturalGradientState(
            torch.where(good.unsqueeze(1), there, at),
            torch.where(good, energy_there, energy),
            torch.where(good.unsqueeze(1), slope_there, slope),
            metric,
            torch.where(trusted, damping / _LESS, damping * _MORE).clamp(_LEAST * unit, _MOST * unit),
            unit,
        )

    def promise(self, state: NaturalGradientState) -> Tensor:
        r""":math:`\tfrac12 g^\top G^{-1} g`; 0 where no damping helps."""
        step = torch.linalg.solve_ex(state.metric, state.slope.unsqueeze(-1))[0].squeeze(-1)
        return torch.where(state.damping < _MOST * state.unit, (state.slope * step).sum(1) / 2, 0.0)

    def _metric_at(self, at: Tensor) -> Tensor:
        """In tangent space, and the identity across it."""
        identity = torch.eye(at.shape[1], dtype=at.dtype, device=at.device)
        chains, size = at.shape
        # Row by row of the identity: what a projection of every basis vector is.
        bases = identity.expand(chains, size, size).reshape(-1, size)
        projection = self._points.tangent(at.repeat_interleave(size, 0), bases).reshape(chains, size, size)
        metric = self._metric(at).nan_to_num(0.0, 0.0, 0.0)
        return projection @ metric @ projection + identity - projection
