r"""Steps of dynamics in a metric that changes from point to point, in position and velocity.

The motion is :math:`\ddot q = -G^{-1}(\nabla\varphi + C(q, \dot q)\,\dot q)`, C the lower connection of G. It keeps
:math:`H = \varphi + \tfrac12 v^\top G v` and the volume :math:`|G|\,dq\,dv`, so it leaves
:math:`e^{-\varphi}|G|\,e^{-v^\top G v/2}` alone, in which q has the density :math:`e^{-\varphi}\sqrt{|G|}`.

All tensors are flat with a leading chain dimension, ``(chains, d)``; every function is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField
from pyro_manifold.infer.mcmc.states import normal_like

FlatPotential = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions ``(chains, d)`` to the potential energy E ``(chains,)`` and its gradient ``(chains, d)``."""


class Point(NamedTuple):
    """A position of every chain and all that depends on it alone.

    Attributes:
        position: q, ``(chains, d)``.
        energy: E, ``(chains,)``.
        gradient: of φ, which is E or E + ½ log|G|, ``(chains, d)``.
        metric: G, ``(chains, d, d)``, jitter included.
        factor: its lower Cholesky factor.
        jitter: what was added to the diagonal of a singular G, else 0, ``(chains,)``.
    """

    position: Tensor
    energy: Tensor
    gradient: Tensor
    metric: Tensor
    factor: Tensor
    jitter: Tensor

    @property
    def half_log_determinant(self) -> Tensor:
        """½ log|G|, ``(chains,)``."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


Kick = Callable[[Point, Tensor, Tensor, MetricField], tuple[Tensor, Tensor]]
"""Velocity after a time ``(chains,)`` at a fixed point, and the log of the volume change of velocities."""


def factorise(metric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor of G, G with the jitter it needed, and that jitter, ``(chains,)``.

    The jitter is the square root of the dtype's precision, times the mean of the diagonal. A metric that is not
    finite gives a factor that is not: a divergence, for the caller to judge.
    """
    factor, info = torch.linalg.cholesky_ex(metric)
    singular = info > 0
    diagonal = metric.diagonal(dim1=-2, dim2=-1)
    size = diagonal.mean(-1) * torch.finfo(metric.dtype).eps ** 0.5
    jitter = torch.where(singular, size, torch.zeros_like(size))
    moved = metric + torch.diag_embed(jitter.unsqueeze(-1).expand_as(diagonal))
    again, failed = torch.linalg.cholesky_ex(moved)
    factor = torch.where(singular[:, None, None], again, factor)
    # A factor that stops half-way through the matrix must not pass for one.
    factor = torch.where((failed > 0)[:, None, None], torch.nan, factor)
    return factor, moved, jitter


def point_at(position: Tensor, *, potential: FlatPotential, field: MetricField, with_volume: bool) -> Point:
    """The point of a position; ``with_volume`` adds ½ log|G| to the potential whose gradient it holds."""
    energy, gradient = potential(position)
    metric, pull = field.at(position)
    factor, metric, jitter = factorise(metric)
    if with_volume:
        gradient = gradient + pull(torch.cholesky_inverse(factor))
    return Point(position, energy, gradient, metric, factor, jitter)


def kinetic_energy(point: Point, velocity: Tensor) -> Tensor:
    """½ vᵀGv, ``(chains,)``."""
    return 0.5 * (velocity.unsqueeze(-2) @ point.factor).square().sum((-2, -1))


def draw_velocity(point: Point, random: torch.Generator | None = None) -> Tensor:
    """An exact draw of v ~ N(0, G⁻¹), that is of momenta Gv ~ N(0, G)."""
    noise = normal_like(point.position, random).unsqueeze(-1)
    return torch.linalg.solve_triangular(point.factor.mT, noise, upper=True).squeeze(-1)


def refresh(point: Point, velocity: Tensor, persistence: float, random: torch.Generator | None = None) -> Tensor:
    r"""Part of the velocity, drawn again: :math:`v \leftarrow v\cos\theta + \xi\sin\theta` with ξ ~ N(0, G⁻¹).

    Leaves N(0, G⁻¹) as it is. ``persistence`` is cos θ.
    """
    return persistence * velocity + (1 - persistence**2) ** 0.5 * draw_velocity(point, random)


# ---- kicks: the velocity moves, the position does not ---------------------------------------------------------


def explicit_kick(point: Point, velocity: Tensor, time: Tensor, field: MetricField) -> tuple[Tensor, Tensor]:
    """The kick by the midpoint rule, at the cost of two second derivatives along a velocity; volume not tracked."""
    time = time.unsqueeze(-1)
    middle = velocity + time / 2 * _acceleration(point, velocity, field)
    return velocity + time * _acceleration(point, middle, field), torch.zeros_like(point.energy)


def _acceleration(point: Point, velocity: Tensor, field: MetricField) -> Tensor:
    force = point.gradient + field.connection(point.position, velocity)
    return -torch.cholesky_solve(force.unsqueeze(-1), point.factor).squeeze(-1)


def lagrangian_kick(point: Point, velocity: Tensor, time: Tensor, field: MetricField) -> tuple[Tensor, Tensor]:
    r"""The kick that is linear in the new velocity: :math:`(G + tC(v))\,v^+ = Gv - t\nabla\varphi`.

    C(v) w = C(w) v makes it its own inverse under reversal of time, and its Jacobian
    :math:`|G - tC(v^+)|\,/\,|G + tC(v)|`, of which the log is returned.

    Source: Lan, Stathopoulos, Shahbaba & Girolami 2015, arXiv 1211.3759, with G multiplied out.
    """
    momentum = (point.metric @ velocity.unsqueeze(-1)).squeeze(-1)
    of_vectors, of_matrices = time[:, None], time[:, None, None]
    before = point.metric + of_matrices * field.connection_matrix(point.position, velocity)
    factors, pivots, _ = torch.linalg.lu_factor_ex(before)
    kicked = torch.linalg.lu_solve(factors, pivots, (momentum - of_vectors * point.gradient).unsqueeze(-1)).squeeze(-1)
    after = point.metric - of_matrices * field.connection_matrix(point.position, kicked)
    return kicked, _log_determinant(torch.linalg.lu_factor_ex(after).LU) - _log_determinant(factors)


def _log_determinant(factors: Tensor) -> Tensor:
    return factors.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def leapfrog(
    point: Point,
    velocity: Tensor,
    step_size: Tensor | float,
    *,
    kick: Kick,
    potential: FlatPotential,
    field: MetricField,
    with_volume: bool,
) -> tuple[Point, Tensor, Tensor]:
    """Half a kick, a drift, half a kick: second order in ε.

    Args:
        point: where the chains are.
        velocity: v, ``(chains, d)``.
        step_size: ε, a number or ``(chains,)``.
        kick: `explicit_kick` or `lagrangian_kick`; with the second the step is reversible.
        potential: E and its gradient.
        field: the metric.
        with_volume: whether φ includes ½ log|G|.

    Returns:
        The point and velocity a time ε later, and the log volume change of ``(q, v)``, ``(chains,)``.
    """
    time = torch.as_tensor(step_size, dtype=velocity.dtype, device=velocity.device).expand_as(point.energy)
    velocity, first = kick(point, velocity, time / 2, field)
    moved = point_at(
        point.position + time[:, None] * velocity, potential=potential, field=field, with_volume=with_volume
    )
    velocity, second = kick(moved, velocity, time / 2, field)
    return moved, velocity, first + second
