r"""How one block of sites moves: distribution of momenta, kinetic energy, velocity, kick and drift.

Hamiltonian mechanics moves a position x (the sites) and a momentum r, at constant energy :math:`H = U(x) + K(x, r)`,
U minus the log density. A *kick* changes r by the force -∇U while x stays; a *drift* moves x by its velocity while no
force acts. The *mass* says how slowly a momentum moves its site: a large one suits a site with little room.

A block is a tensor with a leading chain dimension. Each class is the mechanics of one kind of space; the integrator
composes them and knows none of them. Times are a number, or one for each chain, ``(chains,)``, of either sign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.states import normal_like, per_chain
from pyro_manifold.manifolds import Manifold, Stiefel
from pyro_manifold.manifolds.stiefel import cayley_flow


class Metric(NamedTuple):
    """Masses of one block, as the two factors that mechanics needs.

    Dimension 0 is the chain: of size 1 for masses that all chains share. Then nothing for a scalar mass, ``(d,)`` for a
    diagonal mass matrix, ``(d, d)`` for a dense one.

    Attributes:
        inverse_mass: M⁻¹, ``(1 or chains, ...)``.
        mass_factor: M^½, in the same form: any matrix R with R Rᵀ = M.
    """

    inverse_mass: Tensor
    mass_factor: Tensor

    def at(self, temperature: float) -> Metric:
        """The same masses, with momenta drawn at a temperature τ: ∝ exp(-K/τ)."""
        return self._replace(mass_factor=temperature**0.5 * self.mass_factor)

    @classmethod
    def from_inverse_mass(cls, inverse_mass: Tensor) -> Metric:
        if inverse_mass.dim() < 3:
            return cls(inverse_mass, inverse_mass.rsqrt())
        lower = torch.linalg.cholesky(inverse_mass)
        identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return cls(inverse_mass, torch.linalg.solve_triangular(lower, identity, upper=False).mT)


class Mechanics(ABC):
    r"""Hamiltonian mechanics of one block, for :math:`H = U(x) + K(x, r)`, K quadratic in r.

    ``kick`` is the flow of U, ``drift`` the exact flow of K or an integrator of it that is symplectic,
    symmetric and keeps K. Momenta have the distribution :math:`\propto e^{-K}` on the space of momenta at x.
    """

    @abstractmethod
    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        """An exact draw from the distribution of momenta at each chain's position."""

    @abstractmethod
    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        """K, of shape ``(chains,)``."""

    @abstractmethod
    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        """The velocity with which a drift leaves the position."""

    @abstractmethod
    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        """Momentum after the potential's force has acted for ``time``; ``gradient`` is the Euclidean one."""

    @abstractmethod
    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        """Position and momentum after free motion for ``time``."""

    def degrees_of_freedom(self, position: Tensor) -> int:
        """Dimension of the space of one chain's momenta."""
        return position[0].numel()

    def restore(self, position: Tensor) -> Tensor:
        """Remove the rounding that a trajectory has gathered, where the space has a constraint."""
        return position

    def restore_momentum(self, position: Tensor, momentum: Tensor) -> Tensor:
        """The nearest momentum at a position that has been restored."""
        return momentum

    def refresh(
        self,
        position: Tensor,
        momentum: Tensor,
        metric: Metric,
        persistence: float,
        random: torch.Generator | None = None,
    ) -> Tensor:
        r"""Draw part of the momentum anew: :math:`r \leftarrow r\cos\theta + \xi\sin\theta`, ξ a fresh draw.

        Leaves the distribution of momenta as it is, which is Gaussian. ``persistence`` is cos θ; at 0 nothing is kept.
        """
        fresh = self.draw_momentum(position, metric, random)
        if not persistence:
            return fresh
        return persistence * self.restore_momentum(position, momentum) + (1 - persistence**2) ** 0.5 * fresh


class EuclideanMechanics(Mechanics):
    r"""Flat space, one vector a chain: :math:`K = \tfrac12 r^\top M^{-1} r` with M diagonal or dense."""

    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        noise = normal_like(position, random)
        # In place where it can be: a pass over fresh memory is what a step of a large network is made of.
        return noise.mul_(metric.mass_factor) if metric.mass_factor.dim() < 3 else _product(metric.mass_factor, noise)

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * (momentum * self.velocity(position, momentum, metric)).sum(-1)

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        r""":math:`M^{-1} r`."""
        return _product(metric.inverse_mass, momentum)

    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        if not isinstance(time, Tensor):
            return torch.sub(momentum, gradient, alpha=time)  # in one pass over the memory of a network
        return momentum - per_chain(time, gradient) * gradient

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        if not isinstance(time, Tensor) and metric.inverse_mass.dim() < 3:
            return torch.addcmul(position, momentum, metric.inverse_mass, value=time), momentum
        return position + per_chain(time, position) * self.velocity(position, momentum, metric), momentum


def _product(factor: Tensor, vectors: Tensor) -> Tensor:
    """A diagonal ``(c, d)`` or matrix ``(c, d, d)`` of each chain, or of all (c = 1), times vectors ``(chains, d)``."""
    if factor.dim() < 3:
        return vectors * factor
    if len(factor) == 1:
        return vectors @ factor[0].mT
    return (factor @ vectors.unsqueeze(-1)).squeeze(-1)


class ManifoldMechanics(Mechanics):
    r"""What metrics of one manifold share: the force :math:`P_x(\nabla U)`, and the removal of rounding.

    Args:
        manifold: gives the orthogonal projection :math:`P_x`.
    """

    def __init__(self, manifold: Manifold) -> None:
        self._manifold = manifold

    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        return momentum - per_chain(time, momentum) * self._manifold.tangent_projection(position, gradient)

    def degrees_of_freedom(self, position: Tensor) -> int:
        shape = position.shape[1:]
        batch = shape[: len(shape) - self._manifold.event_dim]
        return batch.numel() * self._manifold.dimension(*shape[len(batch) :])

    def restore(self, position: Tensor) -> Tensor:
        return self._manifold.restoration(position)

    def restore_momentum(self, position: Tensor, momentum: Tensor) -> Tensor:
        return self._manifold.tangent_projection(position, momentum)


class CayleyMechanics(ManifoldMechanics):
    r"""Stiefel sites in the canonical metric, the momentum a **covector**, the drift a Cayley rotation.

    For :math:`r = XA + X_\perp B` tangent at X and a scalar mass m:

    - :math:`K = \left(\tfrac12 \|r\|^2 + \tfrac12 \|X^\top r\|^2\right)/m = \left(\|A\|^2 + \tfrac12 \|B\|^2\right)/m`;
    - momentum draw :math:`\sqrt m\,(Z - X A_0 + X\,\mathrm{skew}(A_0)/\sqrt2)`, :math:`A_0 = X^\top Z`, Z standard
      normal: entries of A have variance m/4, of B variance m, which is :math:`e^{-K}`;
    - velocity :math:`(r + X X^\top r)/m`;
    - kick along :math:`P_X(\nabla U)`, the **orthogonal** projection: the differential of U as a covector in
      the same representation as r;
    - drift by `cayley_flow` for time t/m.

    These belong together: the orthogonal kick with :math:`K = \tfrac12\|r\|^2`, or momentum
    :math:`Z - X Z^\top X`, gives a sampler that accepts nearly always and draws from another distribution.

    Yanush & Kropotov, arXiv 1901.08045, which leaves the pairing open.
    """

    def __init__(self) -> None:
        super().__init__(Stiefel())

    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        noise = normal_like(position, random)
        inner = position.mT @ noise
        skew = (inner - inner.mT) / 2
        return per_chain(metric.mass_factor, position) * (noise + position @ (skew / 2**0.5 - inner))

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        inner = position.mT @ momentum
        squares = momentum.square().flatten(1).sum(1) + inner.square().flatten(1).sum(1)
        return 0.5 * metric.inverse_mass * squares

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        moved = momentum + position @ (position.mT @ momentum)
        return per_chain(metric.inverse_mass, moved) * moved

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return cayley_flow(position, momentum, per_chain(time * metric.inverse_mass, position))


class GeodesicMechanics(ManifoldMechanics):
    r"""Any manifold in its embedded (Euclidean) metric, the drift a geodesic.

    - :math:`K = \tfrac12 \|r\|^2 / m`, r tangent at x; momentum draw :math:`\sqrt m\,P_x(Z)`, Z standard normal;
    - velocity r/m;
    - kick along :math:`P_x(\nabla U)`;
    - drift along the geodesic for time t/m.

    Byrne & Girolami 2013, arXiv 1301.6064, algorithm 1.

    Args:
        manifold: gives the projection :math:`P_x` and the geodesics.
    """

    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        noise = self._manifold.tangent_projection(position, normal_like(position, random))
        return per_chain(metric.mass_factor, position) * noise

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * metric.inverse_mass * momentum.square().flatten(1).sum(1)

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return per_chain(metric.inverse_mass, momentum) * momentum

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return self._manifold.geodesic_flow(position, momentum, per_chain(time * metric.inverse_mass, position))
