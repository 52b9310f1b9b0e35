"""Mechanics of Stiefel sites with a mass for each column."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.infer.mcmc.mechanics.mechanics import ManifoldMechanics, Metric
from pyro_manifold.infer.mcmc.transitions import per_chain
from pyro_manifold.manifolds import Stiefel


class ColumnMechanics(ManifoldMechanics):
    r"""Mechanics of Stiefel sites, p < n, with a mass for each column; the momentum is a **covector**.

    With one mass for all columns, the column with the smallest scale limits the step size and the one with the largest
    scale requires long trajectories. For $r = XA + b$ tangent at X, $A = X^\top r$ skew,
    $b = (I - XX^\top) r$, a mass $m_k$ for motion of column k out of the span of all columns and a mass m
    for rotations of columns within it:

    - $K = \sum_k \|b_k\|^2 / (2 m_k) + \|A\|^2 / m$, which does not change under $X \to QX$;
    - momentum draw: $b_k = \sqrt{m_k}\,(I - XX^\top) z_k$, $A_{kl} = \tfrac12 \sqrt m\, N(0, 1)$;
    - velocity $2 X A / m + b\,\mathrm{diag}(1/m_k)$;
    - kick along $P_X(\nabla U)$, the orthogonal projection, as in `CayleyMechanics`, whose K is the special case
      $m_k = m$;
    - drift by `column_flow`, a palindromic composition of the flows of the terms of K.

    The flat vector of a metric has, for each matrix of a block, the masses of the p columns and then that of rotations.
    """

    def __init__(self) -> None:
        super().__init__(Stiefel())

    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric) -> Tensor:
        columns, within = _parts(metric.mass_factor, position)
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
    """Split a flat metric into entries of columns, ``(..., 1, p)``, and of rotations in the span, ``(..., 1, 1)``."""
    numbers = flat.reshape(len(flat), *position.shape[1:-2], 1, position.shape[-1] + 1)
    return numbers[..., :-1], numbers[..., -1:]


def column_flow(point: Tensor, momentum: Tensor, columns: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    r"""Integrate free motion with a mass for each column, by a symmetric composition of flows of single terms of K.

    Each flow rotates X and r such that $W = rX^\top - Xr^\top$ is conserved, and
    $WX = 2XA + b$ determines the following flows. Therefore only X is updated, and r is computed at the end. The
    flows for a time t are:

    - rotations within the span: $X \leftarrow X\,\mathrm{cay}(2At/m)$;
    - column k: a rotation of $x_k$ towards $b_k$ by twice the angle whose tangent is
      $\|b_k\| t / (2 m_k)$: with $y = x_k + b_k t/(2 m_k)$, $x_k \leftarrow 2y/\|y\|^2 - x_k$.

    These Cayley rotations, used in place of exponentials, are exact flows of functions of A and of $\|b_k\|$ that
    differ from the terms of K in fourth order. The composition is therefore symplectic and symmetric, and conserves K
    up to $O(t^3)$. The cost is O(np²).

    Args:
        point: X, ``(..., n, p)``.
        momentum: r, ``(..., n, p)``, tangent at X.
        columns: $t/m_k$, ``(..., 1, p)``.
        within: t/m, ``(..., 1, 1)``.

    Returns:
        The moved point and its momentum.
    """
    p = point.shape[-1]
    left, right = torch.cat([momentum, -point], -1), torch.cat([point, momentum], -1).mT
    # The last column is in the middle of the palindrome: its two half steps are merged into one.
    tangents = torch.cat([columns[..., :-1] / 4, columns[..., -1:] / 2], -1)
    unit = torch.eye(p, dtype=point.dtype, device=point.device)

    def rotated(X: Tensor) -> Tensor:  # WX
        return left @ (right @ X)

    def turned(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moved = rotated(X)
        twice = X.mT @ moved
        half = within / 4 * (twice - twice.mT) / 2
        turn = unit + by_matrix(torch.linalg.solve_ex, unit - half, 2 * half)[0]
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
