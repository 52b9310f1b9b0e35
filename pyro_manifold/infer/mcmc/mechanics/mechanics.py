r"""Hamiltonian mechanics of one block of sites: momentum distribution, kinetic energy, velocity, kick and drift.

Hamiltonian mechanics moves a position x (the sites) and a momentum r at constant energy $H = U(x) + K(x, r)$,
U minus the log density. A *kick* changes r by the force -∇U at fixed x; a *drift* moves x by its velocity without a
force. The larger the *mass*, the slower a momentum moves its site; sites of small posterior variance need a large mass.

A block is a tensor with a leading chain dimension. Each class implements the mechanics of one kind of space; the
integrator uses only their common interface. Times are a number, or one for each chain, ``(chains,)``, of either sign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions import normal_like, per_chain
from pyro_manifold.manifolds import Manifold, Stiefel, cayley_flow


class Metric(NamedTuple):
    """Masses of one block, as the two factors used by `Mechanics`.

    Dimension 0 is that of chains, of size 1 for masses that all chains share. The remaining shape is empty for a scalar
    mass, ``(d,)`` for a diagonal mass matrix, and ``(d, d)`` for a dense one.

    Attributes:
        inverse_mass: M⁻¹, ``(1 or chains, ...)``.
        mass_factor: M^½ in the same form; for a dense matrix any R with R Rᵀ = M.
    """

    inverse_mass: Tensor
    mass_factor: Tensor

    def at(self, temperature: float) -> Metric:
        """Return the same masses with momenta drawn at a temperature τ, from a distribution ∝ exp(-K/τ)."""
        return self._replace(mass_factor=temperature**0.5 * self.mass_factor)

    @classmethod
    def from_inverse_mass(cls, inverse_mass: Tensor) -> Metric:
        if inverse_mass.dim() < 3:
            return cls(inverse_mass, inverse_mass.rsqrt())
        lower = torch.linalg.cholesky(inverse_mass)
        identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return cls(inverse_mass, torch.linalg.solve_triangular(lower, identity, upper=False).mT)


class Mechanics(ABC):
    r"""Hamiltonian mechanics of one block, for $H = U(x) + K(x, r)$, K quadratic in r.

    ``kick`` is the flow of U, ``drift`` the exact flow of K or a symplectic, symmetric integrator of it that conserves
    K. Momenta have the distribution $\propto e^{-K}$ on the space of momenta at x.
    """

    @abstractmethod
    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric) -> Tensor:
        """Compute momenta from standard normal noise, by a linear map at each chain's position.

        Args:
            noise: standard normal noise in the shape of positions; may be overwritten.
            position: positions of the chains.
            metric: masses of the block.
        """

    def draw_momentum(self, position: Tensor, metric: Metric, random: torch.Generator | None = None) -> Tensor:
        """Draw exactly from the distribution of momenta at each chain's position."""
        return self.momentum_from(normal_like(position, random), position, metric)

    @abstractmethod
    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        """Compute the kinetic energy K, ``(chains,)``."""

    @abstractmethod
    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        """Compute the initial velocity of a drift."""

    @abstractmethod
    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        """Return the momentum after the force has acted for ``time``; ``gradient`` is the Euclidean gradient."""

    @abstractmethod
    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return position and momentum after free motion for ``time``."""

    def degrees_of_freedom(self, position: Tensor) -> int:
        """Return the dimension of the space of one chain's momenta."""
        return position[0].numel()

    def restore(self, position: Tensor) -> Tensor:
        """Remove rounding errors accumulated along a trajectory, by projection to the constraint if there is one."""
        return position

    def restore_momentum(self, position: Tensor, momentum: Tensor) -> Tensor:
        """Return the nearest momentum in the tangent space at a restored position."""
        return momentum

    def refresh(
        self,
        position: Tensor,
        momentum: Tensor,
        metric: Metric,
        persistence: float,
        noise: Tensor,
    ) -> Tensor:
        r"""Partially refresh the momentum: $r \leftarrow r\cos\theta + \xi\sin\theta$, ξ a fresh draw.

        The Gaussian distribution of momenta is invariant. ``persistence`` is cos θ; 0 is a full refreshment. ξ is
        computed from ``noise``; see `momentum_from`.
        """
        fresh = self.momentum_from(noise, position, metric)
        if not persistence:
            return fresh
        return persistence * self.restore_momentum(position, momentum) + (1 - persistence**2) ** 0.5 * fresh


class EuclideanMechanics(Mechanics):
    r"""Mechanics of Euclidean space, $K = \tfrac12 r^\top M^{-1} r$ with M diagonal or dense."""

    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric) -> Tensor:
        # In place where possible: steps of large networks are dominated by passes over newly allocated memory.
        return noise.mul_(metric.mass_factor) if metric.mass_factor.dim() < 3 else _product(metric.mass_factor, noise)

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * (momentum * self.velocity(position, momentum, metric)).sum(-1)

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        r"""Compute $M^{-1} r$."""
        return _product(metric.inverse_mass, momentum)

    def kick(self, position: Tensor, momentum: Tensor, gradient: Tensor, time: Tensor | float) -> Tensor:
        if not isinstance(time, Tensor):
            return torch.sub(momentum, gradient, alpha=time)  # one pass over memory, which matters for large networks
        return momentum - per_chain(time, gradient) * gradient

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        if not isinstance(time, Tensor) and metric.inverse_mass.dim() < 3:
            return torch.addcmul(position, momentum, metric.inverse_mass, value=time), momentum
        return position + per_chain(time, position) * self.velocity(position, momentum, metric), momentum


def _product(factor: Tensor, vectors: Tensor) -> Tensor:
    """Multiply vectors ``(chains, d)`` by a diagonal ``(c, d)`` or matrix ``(c, d, d)``; c = 1 if chains share it."""
    if factor.dim() < 3:
        return vectors * factor
    if len(factor) == 1:
        return vectors @ factor[0].mT
    return (factor @ vectors.unsqueeze(-1)).squeeze(-1)


class ManifoldMechanics(Mechanics):
    r"""Base class for mechanics on a manifold: the force $P_x(\nabla U)$ and the removal of rounding errors.

    Args:
        manifold: manifold with its orthogonal projection $P_x$.
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
    r"""Mechanics of Stiefel sites in the canonical metric; the momentum is a **covector**, the drift a Cayley rotation.

    For $r = XA + X_\perp B$ tangent at X and a scalar mass m:

    - $K = \left(\tfrac12 \|r\|^2 + \tfrac12 \|X^\top r\|^2\right)/m = \left(\|A\|^2 + \tfrac12 \|B\|^2\right)/m$;
    - momentum draw $\sqrt m\,(Z - X A_0 + X\,\mathrm{skew}(A_0)/\sqrt2)$, $A_0 = X^\top Z$, Z standard
      normal: entries of A have variance m/4, entries of B variance m, as required by $e^{-K}$;
    - velocity $(r + X X^\top r)/m$;
    - kick along $P_X(\nabla U)$, the **orthogonal** projection: the differential of U as a covector in
      the same representation as r;
    - drift by `cayley_flow` for time t/m.

    These choices are consistent only in combination: the orthogonal kick with $K = \tfrac12\|r\|^2$, or with
    momentum $Z - X Z^\top X$, gives a sampler that accepts nearly always and draws from a wrong distribution.

    Yanush & Kropotov, arXiv 1901.08045, who do not specify the combination.
    """

    def __init__(self) -> None:
        super().__init__(Stiefel())

    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric) -> Tensor:
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
    r"""Mechanics of any manifold in its embedded (Euclidean) metric; the drift follows a geodesic.

    - $K = \tfrac12 \|r\|^2 / m$, r tangent at x; momentum draw $\sqrt m\,P_x(Z)$, Z standard normal;
    - velocity r/m;
    - kick along $P_x(\nabla U)$;
    - drift along the geodesic for time t/m.

    Byrne & Girolami 2013, arXiv 1301.6064, algorithm 1.

    Args:
        manifold: manifold with its projection $P_x$ and geodesics.
    """

    def momentum_from(self, noise: Tensor, position: Tensor, metric: Metric) -> Tensor:
        return per_chain(metric.mass_factor, position) * self._manifold.tangent_projection(position, noise)

    def kinetic_energy(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return 0.5 * metric.inverse_mass * momentum.square().flatten(1).sum(1)

    def velocity(self, position: Tensor, momentum: Tensor, metric: Metric) -> Tensor:
        return per_chain(metric.inverse_mass, momentum) * momentum

    def drift(self, position: Tensor, momentum: Tensor, metric: Metric, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return self._manifold.geodesic_flow(position, momentum, per_chain(time * metric.inverse_mass, position))
