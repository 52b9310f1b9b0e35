"""How one block of sites moves: momentum law, kinetic energy, kick and drift.

A block is a tensor with a leading chain dimension. Each class is the mechanics of one kind of space; the
integrator composes them and knows none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold, Stiefel
from pyro_manifold.manifolds.stiefel import cayley_flow


class Metric(NamedTuple):
    """Masses of one block, as the two factors that mechanics needs.

    Attributes:
        inverse_mass: M⁻¹: a scalar, a vector (diagonal) or a matrix.
        mass_factor: M^½, in the same form: any matrix R with R Rᵀ = M.
    """

    inverse_mass: Tensor
    mass_factor: Tensor

    @classmethod
    def from_inverse_mass(cls, inverse_mass: Tensor) -> Metric:
        if inverse_mass.dim() < 2:
            return cls(inverse_mass, inverse_mass.rsqrt())
        lower = torch.linalg.cholesky(inverse_mass)
        identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
        return cls(inverse_mass, torch.linalg.solve_triangular(lower, identity, upper=False).mT)


class Mechanics(ABC):
    r"""Hamiltonian mechanics of one block, for :math:`H = U(x) + K(x, r)`.

    ``kick`` is the flow of U, ``drift`` the exact flow of K or an integrator of it that is symplectic,
    symmetric and keeps K. The momentum law is :math:`\propto e^{-K}` on the space of momenta at x.
    """

    @abstractmethod
    def draw_momentum(self, position: Tensor, metric: Metric) -> Tensor:
        """An exact draw from the momentum law at each chain's position."""

    @abstractmethod
    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        """K, of shape ``(chains,)``."""

    @abstractmethod
    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        """Momentum after the potential's force has acted for ``time``; ``gradient`` is the Euclidean one."""

    @abstractmethod
    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        """Position and momentum after free motion for ``time``."""

    def restore(self, position: Tensor) -> Tensor:
        """Remove the rounding that a trajectory has gathered, where the space has a constraint."""
        return position


class EuclideanMechanics(Mechanics):
    r"""Flat space, one vector a chain: :math:`K = \tfrac12 r^\top M^{-1} r` with M diagonal or dense."""

    def draw_momentum(self, position: Tensor, metric: Metric) -> Tensor:
        noise = torch.randn_like(position)
        factor = metric.mass_factor
        return noise @ factor.mT if factor.dim() == 2 else noise * factor

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * (momentum * self._velocity(momentum, metric)).sum(-1)

    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        return momentum - time * gradient

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return position + time * self._velocity(momentum, metric), momentum

    @staticmethod
    def _velocity(momentum: Tensor, metric: Metric) -> Tensor:
        inverse_mass = metric.inverse_mass
        return momentum @ inverse_mass if inverse_mass.dim() == 2 else momentum * inverse_mass


class ManifoldMechanics(Mechanics):
    r"""What metrics of one manifold share: the force :math:`P_x(\nabla U)`, and the removal of rounding.

    Args:
        manifold: gives the orthogonal projection :math:`P_x`.
    """

    def __init__(self, manifold: Manifold) -> None:
        self._manifold = manifold

    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        return momentum - time * self._manifold.tangent_projection(position, gradient)

    def restore(self, position: Tensor) -> Tensor:
        return self._manifold.restoration(position)


class CayleyMechanics(ManifoldMechanics):
    r"""Stiefel sites in the canonical metric, the momentum a **covector**, the drift a Cayley rotation.

    For :math:`r = XA + X_\perp B` tangent at X and a scalar mass m:

    - :math:`K = \left(\tfrac12 \|r\|^2 + \tfrac12 \|X^\top r\|^2\right)/m = \left(\|A\|^2 + \tfrac12 \|B\|^2\right)/m`;
    - momentum draw :math:`\sqrt m\,(Z - X A_0 + X\,\mathrm{skew}(A_0)/\sqrt2)`, :math:`A_0 = X^\top Z`, Z standard
      normal: entries of A have variance m/4, of B variance m, which is :math:`e^{-K}`;
    - kick along :math:`P_X(\nabla U)`, the **orthogonal** projection: the differential of U as a covector in
      the same representation as r;
    - drift by `cayley_flow` for time t/m.

    These three belong together: the orthogonal kick with :math:`K = \tfrac12\|r\|^2`, or momentum
    :math:`Z - X Z^\top X`, gives a sampler that accepts nearly always and draws from another law.

    Yanush & Kropotov, arXiv 1901.08045, which leaves the pairing open.
    """

    def __init__(self) -> None:
        super().__init__(Stiefel())

    def draw_momentum(self, position: Tensor, metric: Metric) -> Tensor:
        noise = torch.randn_like(position)
        inner = position.mT @ noise
        skew = (inner - inner.mT) / 2
        return metric.mass_factor * (noise + position @ (skew / 2**0.5 - inner))

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        inner = position.mT @ momentum
        squares = momentum.square().flatten(1).sum(1) + inner.square().flatten(1).sum(1)
        return 0.5 * metric.inverse_mass * squares

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return cayley_flow(position, momentum, time * metric.inverse_mass)


class GeodesicMechanics(ManifoldMechanics):
    r"""Any manifold in its embedded (Euclidean) metric, the drift a geodesic.

    - :math:`K = \tfrac12 \|r\|^2 / m`, r tangent at x; momentum draw :math:`\sqrt m\,P_x(Z)`, Z standard normal;
    - kick along :math:`P_x(\nabla U)`;
    - drift along the geodesic for time t/m.

    Byrne & Girolami 2013, arXiv 1301.6064, algorithm 1.

    Args:
        manifold: gives the projection :math:`P_x` and the geodesics.
    """

    def draw_momentum(self, position: Tensor, metric: Metric) -> Tensor:
        noise = torch.randn_like(position)
        return metric.mass_factor * self._manifold.tangent_projection(position, noise)

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * metric.inverse_mass * momentum.square().flatten(1).sum(1)

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return self._manifold.geodesic_flow(position, momentum, time * metric.inverse_mass)
