"""Stiefel sites with a mass for each column."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.mechanics import ManifoldMechanics, Metric
from pyro_manifold.infer.mcmc.states import normal_like, per_chain
from pyro_manifold.manifolds import Stiefel


class ColumnMechanics(ManifoldMechanics):
    r"""Stiefel sites, p < n, in a metric with a mass for each column; the momentum a **covector**.

    With one mass for all columns, the stiffest makes steps short and the softest makes trajectories long. For
    :math:`r = XA + b` tangent at X, :math:`A = X^\top r` skew, :math:`b = (I - XX^\top) r`, a mass :math:`m_k` for what
    takes column k out of the span of all and a mass m for what turns columns within it:

    - :math:`K = \sum_k \|b_k\|^2 / (2 m_k) + \|A\|^2 / m`, which does not change under :math:`X \to QX`;
    - momentum draw: :math:`b_k = \sqrt{m_k}\,(I - XX^\top) z_k`, :math:`A_{kl} = \tfrac12 \sqrt m\, N(0, 1)`;
    - velocity :math:`2 X A / m + b\,\mathrm{diag}(1/m_k)`;
    - kick along :math:`P_X(\nabla U)`, the orthogonal projection, as in `CayleyMechanics`, whose K this is at
      :math:`m_k = m`;
    - drift by `column_flow`: each term of K by itself, there and back again.

    A metric's flat vector has, for each matrix of a block, the p columns' numbers and then that of the turns within.
    """

    def __init__(self) -> None:
        super().__init__(Stiefel())

    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        columns, within = _parts(metric.mass_factor, position)
        noise = normal_like(position, random)
        inner = position.mT @ noise
        turns = (inner - inner.mT) * (within / 8**0.5)
        return (noise - position @ inner) * columns + position @ turns

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        columns, within = _parts(metric.inverse_mass, position)
        inner = position.mT @ momentum
        outward = momentum - position @ inner
        squares = (outward.square() * columns).sum(-2) / 2 + (inner.square() * within).sum(-2)
        return squares.flatten(1).sum(1)

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        columns, within = _parts(metric.inverse_mass, position)
        inner = position.mT @ momentum
        return (momentum - position @ inner) * columns + position @ (2 * within * inner)

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        columns, within = _parts(metric.inverse_mass, position)
        time = per_chain(time, position)
        return column_flow(position, momentum, time * columns, time * within)


def _parts(flat: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the columns, ``(..., 1, p)``, and of the turns within their span, ``(..., 1, 1)``."""
    numbers = flat.reshape(len(flat), *position.shape[1:-2], 1, position.shape[-1] + 1)
    return numbers[..., :-1], numbers[..., -1:]


def column_flow(point: Tensor, momentum: Tensor, columns: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    r"""Free motion with a mass for each column: a symmetric composition of the flows of single terms of K.

    Each flow rotates X and r so that :math:`W = rX^\top - Xr^\top` stays, and with it all that the rest needs:
    :math:`WX = 2XA + b`. So only X is followed, and r is read off at the end. The flows, for a time t:

    - turns within the span: :math:`X \leftarrow X\,\mathrm{cay}(2At/m)`;
    - column k: a rotation of :math:`x_k` towards :math:`b_k` by twice the angle whose tangent is
      :math:`\|b_k\| t / (2 m_k)`: with :math:`y = x_k + b_k t/(2 m_k)`, :math:`x_k \leftarrow 2y/\|y\|^2 - x_k`.

    These Cayley rotations instead of exponentials are exact flows of functions of A and of :math:`\|b_k\|` that differ
    from the terms of K in fourth order. So the whole is symplectic and symmetric, and keeps K up to
    :math:`O(t^3)`. O(np²).

    Args:
        point: X, ``(..., n, p)``.
        momentum: r, ``(..., n, p)``, tangent at X.
        columns: :math:`t/m_k`, ``(..., 1, p)``.
        within: t/m, ``(..., 1, 1)``.

    Returns:
        The moved point and its momentum.
    """
    p = point.shape[-1]
    left, right = torch.cat([momentum, -point], -1), torch.cat([point, momentum], -1).mT
    # The last column is where there turns into back: its two halves are one.
    tangents = torch.cat([columns[..., :-1] / 4, columns[..., -1:] / 2], -1)
    unit = torch.eye(p, dtype=point.dtype, device=point.device)

    def rotated(X: Tensor) -> Tensor:  # WX
        return left @ (right @ X)

    def turned(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moved = rotated(X)
        twice = X.mT @ moved
        half = within / 4 * (twice - twice.mT) / 2
        turn = unit + torch.linalg.solve_ex(unit - half, 2 * half)[0]
        return X @ turn, moved @ turn, twice

    def passed(X: Tensor, moved: Tensor, order: range) -> Tensor:
        for k in order:
            x, outward = X[..., k : k + 1], moved[..., k : k + 1]
            half = (outward - X @ (X.mT @ outward)) * tangents[..., k : k + 1]
            square = half.square().sum(-2, keepdim=True)
            X = torch.addcmul(X, torch.addcmul(half, square, x, value=-1) / (1 + square), unit[k], value=2)
        return X

    X, moved, _ = turned(point)
    X = passed(X, moved, range(p))
    X = passed(X, rotated(X), range(p - 2, -1, -1))
    X, moved, twice = turned(X)
    return X, moved - X @ twice / 2
