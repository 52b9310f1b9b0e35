"""Tools for tests of integrators: potentials in closed form, incorrect mechanics, canonical coordinates."""

import torch

from pyro_manifold.infer.mcmc.mechanics import (
    CayleyMechanics,
    ColumnMechanics,
    EuclideanMechanics,
    GeodesicMechanics,
    HamiltonianSettings,
    Metric,
    ProductMechanics,
    Trajectory,
    at_rest,
    leapfrog_step,
    refresh,
    total_energy,
)
from pyro_manifold.infer.mcmc.transitions import Executable, per_chain
from pyro_manifold.manifolds import Stiefel


class WrongMomentum(CayleyMechanics):
    """Momentum Z - X Zᵀ X, whose A block has eight times the variance that the kinetic energy implies."""

    def momentum_from(self, noise, position, metric):
        return per_chain(metric.mass_factor, position) * (noise - position @ noise.mT @ position)


class WrongEnergy(CayleyMechanics):
    """Kinetic energy ½‖r‖² with the kick by the orthogonal projection, of two different metrics."""

    def kinetic_energy(self, position, momentum, metric):
        return 0.5 * metric.inverse_mass * momentum.square().flatten(1).sum(1)


class WrongGeodesicEnergy(GeodesicMechanics):
    """Geodesics of the Euclidean metric with the kinetic energy of the canonical one."""

    def kinetic_energy(self, position, momentum, metric):
        inner = position.mT @ momentum
        return super().kinetic_energy(position, momentum, metric) + super().kinetic_energy(position, inner, metric)


class WrongDrift(CayleyMechanics):
    """Drift that rotates the point and only projects the momentum, and so does not preserve volume."""

    def drift(self, position, momentum, metric, time):
        moved, _ = super().drift(position, momentum, metric, time)
        return moved, Stiefel().tangent_projection(moved, momentum)


class WrongColumnMomentum(ColumnMechanics):
    """Momentum in which each column has the mass of another."""

    def momentum_from(self, noise, position, metric):
        factor = metric.mass_factor
        swapped = torch.cat([factor[:, :-1].flip(-1), factor[:, -1:]], -1)
        return super().momentum_from(noise, position, metric._replace(mass_factor=swapped))


class OneWay(ColumnMechanics):
    """Flows of the columns in one order only: symplectic, but not symmetric."""

    def drift(self, position, momentum, metric, time):
        p = position.shape[-1]
        for k in range(p):
            alone = torch.zeros_like(metric.inverse_mass)
            alone[..., k] = metric.inverse_mass[..., k]
            position, momentum = super().drift(position, momentum, metric._replace(inverse_mass=alone), time)
        within = metric.inverse_mass.clone()
        within[..., :p] = 0
        return super().drift(position, momentum, metric._replace(inverse_mass=within), time)


def spread_masses(mechanics, p, inverse_mass=1.0):
    """Return inverse masses for a matrix of p columns: a scalar, or different values around it for each column."""
    if isinstance(mechanics, ColumnMechanics):
        return inverse_mass * torch.linspace(0.5, 1.7, p + 1)
    return inverse_mass


class System:
    """Dynamics of blocks with a potential in closed form, for many chains.

    Masses are common to all chains: a scalar, a vector or a matrix for each block.
    """

    def __init__(self, potential, mechanics, inverse_masses=None):
        self.potential = potential
        self.mechanics = ProductMechanics(mechanics)
        self.trajectory = Executable(Trajectory(self.mechanics), lambda batch: potential)
        inverse_masses = inverse_masses or {}
        self.metrics = {
            block: Metric.from_inverse_mass(torch.as_tensor(inverse_masses.get(block, 1.0)).unsqueeze(0))
            for block in mechanics
        }

    def state(self, position):
        return self.refresh(at_rest(position, self.potential))

    def refresh(self, state, persistence=0.0):
        return refresh(state, mechanics=self.mechanics, metrics=self.metrics, persistence=persistence)

    def energy(self, state):
        return total_energy(state, mechanics=self.mechanics, metrics=self.metrics)

    def integrate(self, state, step_size, num_steps):
        for _ in range(num_steps):
            state = leapfrog_step(
                state, step_size, potential=self.potential, mechanics=self.mechanics, metrics=self.metrics
            )
        return state

    def sample(self, state, step_size, num_steps, iterations, burn_in, persistence=0.0):
        """Sample by Metropolised trajectories; return positions ``(chains, iterations, ...)`` and mean acceptance."""
        device = state.energy.device
        random = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
        settings = HamiltonianSettings(step_size, num_steps, self.metrics, persistence)
        kept, acceptance = [], 0.0
        for iteration in range(burn_in + iterations):
            state, statistics = self.trajectory(state, settings, random)
            acceptance += float(statistics["acceptance_rate"].mean()) / (burn_in + iterations)
            if iteration >= burn_in:
                kept.append(state.position)
        return {block: torch.stack([p[block] for p in kept], 1) for block in state.position}, acceptance


def langevin_bingham(F, A, B):
    """Return the potential U = -tr FᵀX + ½ tr XᵀAXB with its gradient, for A and B symmetric."""

    def potential(position):
        ((block, X),) = position.items()
        AXB = A @ X @ B
        energy = -(F * X).sum((-2, -1)) + 0.5 * (X * AXB).sum((-2, -1))
        return energy, {block: AXB - F}

    return potential


def joint_potential(F):
    """Return a potential of two orthonormal matrices and a vector, U = -tr(s₁FᵀX) + ½‖s‖² + s₂ X₁₁Y₁₁ + sin(s₃)."""

    def potential(position):
        X, Y, s = position[("X",)], position[("Y",)], position[("s", "t")]
        trace = (F * X).sum((-2, -1))
        corner = X[:, 0, 0] * Y[:, 0, 0]
        energy = -s[:, 0] * trace + 0.5 * s.square().sum(-1) + s[:, 1] * corner + s[:, 2].sin()
        d_X = -s[:, 0, None, None] * F
        d_X = d_X + _corner(X, s[:, 1] * Y[:, 0, 0])
        d_Y = _corner(Y, s[:, 1] * X[:, 0, 0])
        d_s = s + torch.stack([-trace, corner, s[:, 2].cos()], -1)
        return energy, {("X",): d_X, ("Y",): d_Y, ("s", "t"): d_s}

    return potential


def _corner(like, value):
    result = torch.zeros_like(like)
    result[:, 0, 0] = value
    return result


def joint_system(orthonormal=None):
    """Return a system of two Stiefel sites (one wide, one nearly square) and three coordinates with a dense mass."""
    root = torch.randn(3, 3)
    orthonormal = orthonormal or CayleyMechanics()
    mechanics = {("X",): orthonormal, ("Y",): orthonormal, ("s", "t"): EuclideanMechanics()}
    masses = {("X",): spread_masses(orthonormal, 2, 0.7), ("Y",): spread_masses(orthonormal, 3, 0.4)}
    masses[("s", "t")] = root @ root.mT + torch.eye(3)
    return System(joint_potential(torch.randn(6, 2)), mechanics, masses)


def joint_position(chains):
    manifold = Stiefel()
    return {
        ("X",): manifold.random_point(chains, 6, 2),
        ("Y",): manifold.random_point(chains, 4, 3),
        ("s", "t"): torch.randn(chains, 3),
    }


def tangent_basis(point):
    """Return an orthonormal basis of the tangent space at one point, ``(dimension, n, p)``."""
    n, p = point.shape
    ambient = torch.eye(n * p).reshape(n * p, n, p)
    projected = Stiefel().tangent_projection(point, ambient).reshape(n * p, n * p)
    left, singular, _ = torch.linalg.svd(projected)
    return left[:, singular > 0.5].mT.reshape(-1, n, p)


def phase_space_map(step, start):
    """Return the map ``(q, p) -> (q', p')`` of a step in canonical coordinates around ``start`` and its image.

    Positions near the start are exp(Ω(q)) X₀, momenta p_i = <r, ∂X/∂q_i>, so that dq∧dp is the symplectic form.
    Near the image q' are the coordinates of the orthogonal projection onto its tangent space.
    """
    origin, basis = start, tangent_basis(start)
    halved = torch.eye(len(origin)) - origin @ origin.mT / 2

    def embed(q):
        tangent = torch.tensordot(q, basis, 1)
        rotation = halved @ tangent @ origin.mT
        return torch.linalg.matrix_exp(rotation - rotation.mT) @ origin

    def canonical(end, end_basis, X, r):
        moving = Stiefel().tangent_projection(X, end_basis).flatten(1)
        flat = end_basis.flatten(1)
        velocities = torch.linalg.solve(moving @ flat.mT, moving)  # rows ∂X/∂q'_i, up to transposition
        q = flat @ (X - end).flatten()
        return torch.cat([q, velocities @ r.flatten()])

    def as_phase_space(z):
        q, p = z.chunk(2)
        jacobian = torch.func.jacfwd(embed)(q).flatten(0, 1)
        X = embed(q)
        r = (jacobian @ torch.linalg.solve(jacobian.mT @ jacobian, p)).reshape(X.shape)
        return step(X, r)

    def mapped(z, end, end_basis):
        return canonical(end, end_basis, *as_phase_space(z))

    return as_phase_space, mapped
