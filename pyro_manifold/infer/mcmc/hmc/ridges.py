"""Mechanics of correlated blocks: directions with their own masses, across orthonormal and unconstrained sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics, Metric
from pyro_manifold.infer.mcmc.hmc.product import Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks, per_chain


class Planes(NamedTuple):
    r"""Skew-symmetric matrices $E_i = \sum_j \omega_{ij} (a_{ij} b_{ij}^\top - b_{ij} a_{ij}^\top)$.

    Attributes:
        speeds: ω, ``(chains, k, p)``.
        first: orthonormal columns $a_{ij}$, ``(chains, k, n, p)``.
        second: orthonormal columns $b_{ij}$, orthogonal to the former.
    """

    speeds: Tensor
    first: Tensor
    second: Tensor

    def applied(self, points: Tensor) -> Tensor:
        """Return all $E_i X$, ``(chains, k, n, p)``."""
        points, speeds = points.unsqueeze(1), self.speeds.unsqueeze(-1)
        along_first, along_second = self.first.mT @ points, self.second.mT @ points
        return self.first @ (speeds * along_second) - self.second @ (speeds * along_first)

    def applied_to_each(self, points: Tensor) -> Tensor:
        """Return $E_i X_i$ for a matrix of each direction, ``(chains, k, n, p)``."""
        speeds = self.speeds.unsqueeze(-1)
        return self.first @ (speeds * (self.second.mT @ points)) - self.second @ (speeds * (self.first.mT @ points))

    def rate(self, index: int, point: Tensor, momentum: Tensor) -> Tensor:
        r"""Return $\langle E_i X, r \rangle$, ``(chains,)``."""
        first, second = self.first[:, index].mT, self.second[:, index].mT
        turning = (second @ point) * (first @ momentum) - (first @ point) * (second @ momentum)
        return (self.speeds[:, index] * turning.sum(-1)).sum(-1)

    def rotated(self, index: int, matrix: Tensor, angle: Tensor) -> Tensor:
        r"""Return $\exp(\theta E_i)$ times a matrix, for angles θ ``(chains,)``."""
        first, second = self.first[:, index], self.second[:, index]
        along_first, along_second = first.mT @ matrix, second.mT @ matrix
        turns = angle.unsqueeze(-1) * self.speeds[:, index]
        sine, less = turns.sin().unsqueeze(-1), (1 - turns.cos()).unsqueeze(-1)
        moved = first @ (sine * along_second - less * along_first)
        return matrix + moved - second @ (sine * along_first + less * along_second)


class Ridges(NamedTuple):
    r"""Directions of a group of blocks, with the weight of each in the kinetic energy.

    Attributes:
        weights: $\lambda_i > -1$, ``(chains, k)``; 0 for a direction that is not used.
        generators: $E_i$ of each block of orthonormal matrices.
        shifts: $u_i$ of each unconstrained block, ``(chains, k, size)``.
    """

    weights: Tensor
    generators: dict[Block, Planes]
    shifts: dict[Block, Tensor]

    @property
    def size(self) -> int:
        """Number of directions."""
        return self.weights.shape[1]


class RidgeMechanics(ProductMechanics):
    r"""Product mechanics in which directions across blocks have their own masses.

    A ridge of the posterior, a direction with much larger variance than others, is in general neither a column of an
    orthonormal matrix nor a coordinate, but a rotation of the matrix combined with a shift of unconstrained sites. With
    skew-symmetric matrices $E_i$ and vectors $u_i$, constant along a trajectory, and momenta r of an orthonormal matrix
    X and s of unconstrained sites z,

    $$
    K = K_0(X, r, s) + \tfrac12 \sum_i \lambda_i c_i^2 - \tfrac12 \log\det(I + \Lambda S(X)), \quad
    c_i = \langle E_i X, r \rangle + u_i^\top s,
    $$

    $K_0$ the kinetic energy of `ProductMechanics` and S the Gram matrix of the directions in its metric. The
    determinant normalises the distribution of momenta, so that the marginal distribution of positions is the target.

    - $c_i$ generates the motion $X \to e^{\theta E_i} X, z \to z + \theta u_i$ and is unchanged by it.
      The flow of $\tfrac12 \lambda_i c_i^2$ for a time t is therefore that motion with the constant angle
      $\theta = t \lambda_i c_i$, and r rotates with X.
    - The drift is a palindrome of the exact flows of the determinant (a kick), of the directions, and of $K_0$:
      symplectic, reversible, of second order. Without orthonormal matrices in the group all flows commute, and S is
      constant: the inverse mass matrix of the group is a diagonal plus one of low rank.
    - K is positive if no $\lambda_i$ is negative. With one mass for each Stiefel site $K_0$ is a quadratic
      form of $rX^\top - Xr^\top$, and for directions orthonormal in it $\lambda_i > -1$ suffices.

    Generators act from the left. They are therefore unchanged by signs, order and rotations of columns, and a generator
    that rotates X along a great circle does so at all its points: in contrast to local coordinates with a dense mass
    matrix, they have no singular point.

    Args:
        mechanics: mechanics of each block; those with generators are `CayleyMechanics` or `ColumnMechanics`.
        groups: groups of blocks with directions, ``{key of the metrics: blocks}``; groups without an entry in the
            metrics have none.
    """

    def __init__(self, mechanics: Mapping[Block, Mechanics], groups: Mapping[Block, tuple[Block, ...]]) -> None:
        super().__init__(mechanics)
        self.groups = dict(groups)

    def momentum_from(self, noise: Blocks, position: Blocks, metrics: Metrics) -> Blocks:
        r"""Compute momenta by $y + P^{-1} V L^{-\top} (C^{-\top} - I) L^{-1} V^\top y$, y those of $K_0$.

        V has the covectors of $c_i$ as columns, P is the precision of y, $S = LL^\top$,
        $I + L^\top \Lambda L = CC^\top$.
        """
        momentum = super().momentum_from(noise, position, metrics)
        for ridges in self._ridges(metrics):
            lower, root = _factors(_gram(ridges, position, metrics), ridges.weights)
            rates = torch.stack([_rate(ridges, i, position, momentum) for i in range(ridges.size)], -1).unsqueeze(-1)
            rates = torch.linalg.solve_triangular(lower, rates, upper=False)
            rates = torch.linalg.solve_triangular(root.mT, rates, upper=True) - rates
            amounts = torch.linalg.solve_triangular(lower.mT, rates, upper=True).squeeze(-1)
            momentum = {**momentum, **_along(ridges, amounts, position, momentum, metrics)}
        return momentum

    def refresh(
        self, position: Blocks, momentum: Blocks, metrics: Metrics, persistence: float, noise: Blocks
    ) -> Blocks:
        fresh = self.momentum_from(noise, position, metrics)
        if not persistence:
            return fresh
        kept, share = self.restore_momentum(position, momentum), (1 - persistence**2) ** 0.5
        return {block: persistence * kept[block] + share * fresh[block] for block in fresh}

    def kinetic_energy(self, position: Blocks, momentum: Blocks, metrics: Metrics) -> Tensor:
        """Compute K, which includes the normaliser of the distribution of momenta."""
        energy = super().kinetic_energy(position, momentum, metrics)
        for ridges in self._ridges(metrics):
            _, root = _factors(_gram(ridges, position, metrics), ridges.weights)
            rates = torch.stack([_rate(ridges, i, position, momentum) for i in range(ridges.size)], -1)
            squares = (ridges.weights * rates.square()).sum(-1)
            energy = energy + squares / 2 - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return energy

    def drift(
        self, position: Blocks, momentum: Blocks, metrics: Metrics, time: Tensor | float
    ) -> tuple[Blocks, Blocks]:
        position = self._shifted(position, momentum, metrics, time)
        momentum = self._normalised(position, momentum, metrics, time / 2)
        position, momentum = self._turned(position, momentum, metrics, time / 2, 1)
        position, momentum = super().drift(position, momentum, metrics, time)
        position, momentum = self._turned(position, momentum, metrics, time / 2, -1)
        return position, self._normalised(position, momentum, metrics, time / 2)

    def _ridges(self, metrics: Metrics) -> Iterator[Ridges]:
        return (metrics[key] for key in self.groups if key in metrics)

    def _shifted(self, position: Blocks, momentum: Blocks, metrics: Metrics, time: Tensor | float) -> Blocks:
        """Apply the flows of groups without generators, which change no momentum and commute."""
        position = dict(position)
        for ridges in self._ridges(metrics):
            if not ridges.generators:
                rates = [(shift @ momentum[block].unsqueeze(-1)).squeeze(-1) for block, shift in ridges.shifts.items()]
                along = ridges.weights * reduce(torch.add, rates)
                amounts = (per_chain(time, along) * along).unsqueeze(-2)
                for block, shift in ridges.shifts.items():
                    position[block] = position[block] + (amounts @ shift).squeeze(-2)
        return position

    def _turned(
        self, position: Blocks, momentum: Blocks, metrics: Metrics, time: Tensor | float, order: int
    ) -> tuple[Blocks, Blocks]:
        """Apply the flows of directions that turn matrices, in this order (1) or backwards (-1)."""
        position, momentum = dict(position), dict(momentum)
        for ridges in [each for each in self._ridges(metrics) if each.generators][::order]:
            for index in range(ridges.size)[::order]:
                angle = time * ridges.weights[:, index] * _rate(ridges, index, position, momentum)
                for block, planes in ridges.generators.items():
                    both = torch.cat([position[block], momentum[block]], -1)
                    position[block], momentum[block] = planes.rotated(index, both, angle).chunk(2, -1)
                for block, shift in ridges.shifts.items():
                    position[block] = position[block] + angle.unsqueeze(-1) * shift[:, index]
        return position, momentum

    def _normalised(self, position: Blocks, momentum: Blocks, metrics: Metrics, time: Tensor | float) -> Blocks:
        """Kick by the gradient of the normaliser, which depends on positions by the generators alone."""
        momentum = dict(momentum)
        for ridges in self._ridges(metrics):
            if ridges.generators:
                for block, gradient in _normaliser_gradient(ridges, position, metrics).items():
                    momentum[block] = self[block].kick(position[block], momentum[block], gradient, time)
        return momentum


def _rate(ridges: Ridges, index: int, position: Blocks, momentum: Blocks) -> Tensor:
    """Compute $c_i$, ``(chains,)``."""
    turning = [planes.rate(index, position[block], momentum[block]) for block, planes in ridges.generators.items()]
    shifting = [(shift[:, index] * momentum[block]).sum(-1) for block, shift in ridges.shifts.items()]
    return torch.stack([*turning, *shifting]).sum(0)


def _masses(metric: Metric, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return the masses of columns, ``(chains, 1, 1, p)``, and of rotations in their span, ``(chains, 1, 1, 1)``."""
    masses = 1 / metric.inverse_mass.reshape(len(metric.inverse_mass), 1, 1, -1)
    if masses.shape[-1] == 1:  # one mass for the site
        return masses.expand(-1, -1, -1, point.shape[-1]), masses
    return masses[..., :-1], masses[..., -1:]


def _gram(ridges: Ridges, position: Blocks, metrics: Metrics) -> Tensor:
    r"""Compute S, ``(chains, k, k)``.

    The metric of a Stiefel site with masses m_k of columns and m of rotations is
    $\sum_k m_k \|b_k\|^2 + \tfrac m2 \|A\|^2$ for the tangent $XA + b$.
    """
    parts: list[Tensor] = []
    for block, planes in ridges.generators.items():
        columns, within = _masses(metrics[block], position[block])
        tangents = planes.applied(position[block])
        inner = position[block].mT.unsqueeze(1) @ tangents
        outward = (tangents * columns).flatten(2) @ tangents.flatten(2).mT
        parts.append(outward - (inner * (columns - within / 2)).flatten(2) @ inner.flatten(2).mT)
    for block, shift in ridges.shifts.items():
        parts.append((shift / metrics[block].inverse_mass.unsqueeze(-2)) @ shift.mT)
    return reduce(torch.add, parts)


def _factors(gram: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return L and C of $S = LL^\top$, $I + L^\top \Lambda L = CC^\top$; unused directions have S = 1."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    lower = torch.linalg.cholesky_ex(gram + (weights == 0).to(gram).unsqueeze(-1) * identity)[0]
    return lower, torch.linalg.cholesky_ex(identity + lower.mT @ (weights.unsqueeze(-1) * lower))[0]


def _along(ridges: Ridges, amounts: Tensor, position: Blocks, momentum: Blocks, metrics: Metrics) -> Blocks:
    """Add multiples ``(chains, k)`` of $P^{-1} V$ to the momenta of the group."""
    moved = {}
    for block, planes in ridges.generators.items():
        point = position[block]
        columns, within = (masses.squeeze(1) for masses in _masses(metrics[block], point))
        tangent = (amounts[..., None, None] * planes.applied(point)).sum(1)
        inner = point.mT @ tangent
        moved[block] = momentum[block] + (tangent - point @ inner) * columns + point @ inner * (within / 2)
    for block, shift in ridges.shifts.items():
        along = (amounts.unsqueeze(-1) * shift).sum(1)
        moved[block] = momentum[block] + along / metrics[block].inverse_mass
    return moved


def _normaliser_gradient(ridges: Ridges, position: Blocks, metrics: Metrics) -> Blocks:
    r"""Compute the Euclidean gradient of $-\tfrac12 \log\det(I + \Lambda S)$.

    $$
    \sum_i E_i Z_i M - Z_i (A_i N + N A_i), \quad
    Z_i = \sum_j T_{ij} E_j X, \; T = (I + \Lambda S)^{-1} \Lambda, \; A_i = X^\top E_i X,
    $$

    M the diagonal matrix of the masses of columns and $N = M - \tfrac m2 I$.
    """
    weights = ridges.weights.unsqueeze(-1)
    gram = _gram(ridges, position, metrics)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_ex(identity + weights * gram, weights * identity)[0]
    gradient = {}
    for block, planes in ridges.generators.items():
        columns, within = _masses(metrics[block], position[block])
        tangents = planes.applied(position[block])
        mixed = (inverse @ tangents.flatten(2)).unflatten(2, tangents.shape[2:])
        inner = position[block].mT.unsqueeze(1) @ tangents
        less = columns - within / 2
        gradient[block] = (planes.applied_to_each(mixed) * columns - mixed @ (inner * (less + less.mT))).sum(1)
    return gradient
