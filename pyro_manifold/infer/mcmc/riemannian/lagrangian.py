r"""Integrator steps of dynamics in a position-dependent metric, in position and velocity.

The motion is $\ddot q = -G^{-1}(\nabla\varphi + C(q, \dot q)\,\dot q)$, C the lower connection of G. It conserves
$H = \varphi + \tfrac12 v^\top G v$ and the volume $|G|\,dq\,dv$. The density
$e^{-\varphi}|G|\,e^{-v^\top G v/2}$ is therefore invariant; its marginal for q is $e^{-\varphi}\sqrt{|G|}$.

All tensors are flat with a leading chain dimension, ``(chains, d)``; every function is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField

FlatPotential = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from positions ``(chains, d)`` to the potential energy E ``(chains,)`` and its gradient ``(chains, d)``."""


class Point(NamedTuple):
    """Position of every chain, with the quantities that depend on it alone.

    Attributes:
        position: q, ``(chains, d)``.
        energy: E, ``(chains,)``.
        gradient: gradient of φ, which is E or E + ½ log|G|, ``(chains, d)``.
        metric: G, ``(chains, d, d)``, jitter included.
        factor: lower Cholesky factor of G.
        jitter: constant added to the diagonal of a singular G, else 0, ``(chains,)``.
    """

    position: Tensor
    energy: Tensor
    gradient: Tensor
    metric: Tensor
    factor: Tensor
    jitter: Tensor

    @property
    def half_log_determinant(self) -> Tensor:
        """Half the log determinant, ½ log|G|, ``(chains,)``."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


Kick = Callable[[Point, Tensor, Tensor, MetricField], tuple[Tensor, Tensor]]
"""Function that returns the velocity after a time ``(chains,)`` at a fixed point, and its log Jacobian determinant."""


def factorise(metric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the Cholesky factor of G, with jitter if G is singular; return factor, G with jitter, and the jitter.

    The jitter ``(chains,)`` is the square root of the dtype's precision, times the mean of the diagonal. A metric that
    is not finite gives a factor that is not finite, which the caller treats as a divergence.
    """
    factor, info = torch.linalg.cholesky_ex(metric)
    singular = info > 0
    diagonal = metric.diagonal(dim1=-2, dim2=-1)
    size = diagonal.mean(-1) * torch.finfo(metric.dtype).eps ** 0.5
    jitter = torch.where(singular, size, torch.zeros_like(size))
    moved = metric + torch.diag_embed(jitter.unsqueeze(-1).expand_as(diagonal))
    again, failed = torch.linalg.cholesky_ex(moved)
    factor = torch.where(singular[:, None, None], again, factor)
    # An incomplete factor must not be used.
    factor = torch.where((failed > 0)[:, None, None], torch.nan, factor)
    return factor, moved, jitter


def point_at(position: Tensor, *, potential: FlatPotential, field: MetricField, with_volume: bool) -> Point:
    """Compute the `Point` of a position; ``with_volume`` adds ½ log|G| to the potential that is differentiated."""
    energy, gradient = potential(position)
    metric, pull = field.at(position)
    factor, metric, jitter = factorise(metric)
    if with_volume:
        gradient = gradient + pull(torch.cholesky_inverse(factor))
    return Point(position, energy, gradient, metric, factor, jitter)


def kinetic_energy(point: Point, velocity: Tensor) -> Tensor:
    """Compute ½ vᵀGv, ``(chains,)``."""
    return 0.5 * (velocity.unsqueeze(-2) @ point.factor).square().sum((-2, -1))


def velocity_from(noise: Tensor, point: Point) -> Tensor:
    """Map standard normal noise ``(chains, d)`` to velocities v ~ N(0, G⁻¹), that is momenta Gv ~ N(0, G)."""
    return torch.linalg.solve_triangular(point.factor.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)


def refresh(point: Point, velocity: Tensor, persistence: float, noise: Tensor) -> Tensor:
    r"""Partially refresh the velocity: $v \leftarrow v\cos\theta + \xi\sin\theta$ with ξ ~ N(0, G⁻¹).

    N(0, G⁻¹) is invariant. ``persistence`` is cos θ, and ξ is computed from ``noise``.
    """
    return persistence * velocity + (1 - persistence**2) ** 0.5 * velocity_from(noise, point)


# ---- kicks: update of the velocity at a fixed position --------------------------------------------------------


def explicit_kick(point: Point, velocity: Tensor, time: Tensor, field: MetricField) -> tuple[Tensor, Tensor]:
    """Kick by the midpoint rule, at the cost of two directional second derivatives; its Jacobian is not computed."""
    time = time.unsqueeze(-1)
    middle = velocity + time / 2 * _acceleration(point, velocity, field)
    return velocity + time * _acceleration(point, middle, field), torch.zeros_like(point.energy)


def _acceleration(point: Point, velocity: Tensor, field: MetricField) -> Tensor:
    force = point.gradient + field.connection(point.position, velocity)
    return -torch.cholesky_solve(force.unsqueeze(-1), point.factor).squeeze(-1)


def lagrangian_kick(point: Point, velocity: Tensor, time: Tensor, field: MetricField) -> tuple[Tensor, Tensor]:
    r"""Kick by a linear equation for the new velocity: $(G + tC(v))\,v^+ = Gv - t\nabla\varphi$.

    Because of C(v) w = C(w) v it is its own inverse under time reversal, and its Jacobian determinant is
    $|G - tC(v^+)|\,/\,|G + tC(v)|$, whose log is returned.

    Source: Lan, Stathopoulos, Shahbaba & Girolami 2015, arXiv 1211.3759, with both sides multiplied by G.
    """
    momentum = (point.metric @ velocity.unsqueeze(-1)).squeeze(-1)
    of_vectors, of_matrices = time[:, None], time[:, None, None]
    before = point.metric + of_matrices * field.connection_matrix(point.position, velocity)
    factors, pivots, _ = by_matrix(torch.linalg.lu_factor_ex, before)
    kicked = torch.linalg.lu_solve(factors, pivots, (momentum - of_vectors * point.gradient).unsqueeze(-1)).squeeze(-1)
    after = point.metric - of_matrices * field.connection_matrix(point.position, kicked)
    return kicked, _log_determinant(by_matrix(torch.linalg.lu_factor_ex, after)[0]) - _log_determinant(factors)


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
    """Take one leapfrog step of second order: half a kick, a drift, half a kick.

    Args:
        point: current positions of the chains.
        velocity: v, ``(chains, d)``.
        step_size: ε, a number or ``(chains,)``.
        kick: `explicit_kick` or `lagrangian_kick`; the step is reversible with the latter.
        potential: E and its gradient.
        field: the metric.
        with_volume: whether φ includes ½ log|G|.

    Returns:
        Point and velocity after time ε, and the log Jacobian determinant of the map of ``(q, v)``, ``(chains,)``.
    """
    time = torch.as_tensor(step_size, dtype=velocity.dtype, device=velocity.device).expand_as(point.energy)
    velocity, first = kick(point, velocity, time / 2, field)
    moved = point_at(
        point.position + time[:, None] * velocity, potential=potential, field=field, with_volume=with_volume
    )
    velocity, second = kick(moved, velocity, time / 2, field)
    return moved, velocity, first + second
