"""A small non-linear regression whose metric changes, its laws by quadrature, and dynamics that are wrong."""

import numpy as np
import torch

from pyro_manifold.infer.mcmc import lagrangian
from pyro_manifold.infer.mcmc.lagrangian_system import LagrangianSystem
from pyro_manifold.infer.mcmc.metric_field import DenseMetric, PullBackMetric

INPUTS = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
DATA = np.array([0.3, -0.2, 0.1, 0.8, 0.4])
ROOT_PRECISION = 2.0
BLOCK = ("q",)


def embedding(q):
    """Predictions q₁ tanh(q₂ x) with precision 4 and a standard normal prior; |G| varies by a factor of hundreds."""
    prediction = q[0] * torch.tanh(q[1] * torch.as_tensor(INPUTS))
    return torch.cat([ROOT_PRECISION * prediction, q])


def metric(q):
    """The pull-back metric with derivatives taken by hand."""
    x = torch.as_tensor(INPUTS)
    tangent = torch.tanh(q[1] * x)
    columns = ROOT_PRECISION * torch.stack([tangent, q[0] * x * (1 - tangent**2)], -1)
    return columns.mT @ columns + torch.eye(2)


def energy(q):
    data = torch.cat([ROOT_PRECISION * torch.as_tensor(DATA), torch.zeros(2)])
    return 0.5 * (embedding(q) - data).square().sum()


def potential(q):
    gradient, value = torch.func.vmap(torch.func.grad_and_value(energy))(q)
    return value, gradient


FIELDS = {"pull-back": PullBackMetric(embedding, 2, 7), "dense": DenseMetric(metric)}


def expectations(law):
    """Means of q₁² and cos q₁ by quadrature in NumPy, under e^{-E} ("posterior") or √|G| e^{-E} ("jeffreys")."""
    grid = np.linspace(-7, 7, 801)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    tangent = np.tanh(second[..., None] * INPUTS)
    residual = first[..., None] * tangent - DATA
    log_weight = -0.5 * ROOT_PRECISION**2 * (residual**2).sum(-1) - 0.5 * (first**2 + second**2)
    if law == "jeffreys":
        slope = first[..., None] * INPUTS * (1 - tangent**2)
        precision = ROOT_PRECISION**2
        a, b = 1 + precision * (tangent**2).sum(-1), 1 + precision * (slope**2).sum(-1)
        c = precision * (tangent * slope).sum(-1)
        log_weight = log_weight + 0.5 * np.log(a * b - c**2)
    weight = np.exp(log_weight - log_weight.max())
    return [float((weight * value).sum() / weight.sum()) for value in (first**2, np.cos(first))]


def system(field="pull-back", *, kind=LagrangianSystem, persistence=0.0, law="posterior", exact=True):
    field = FIELDS.get(field, field)
    return kind(potential, field, BLOCK, persistence=persistence, with_volume=law == "posterior", exact=exact)


def sample(dynamics, step_size, num_steps, iterations, burn_in, chains):
    """q₁² and cos q₁ of each draw, ``(chains, iterations)`` each, and mean acceptance."""
    state = dynamics.state_at({BLOCK: 0.3 * torch.randn(chains, 2)})
    dynamics.trace(state.point.position, compile=False, options=None, warn=True)
    draws, accepted = [], []
    for iteration in range(burn_in + iterations):
        state, info = dynamics.transition(state, step_size, num_steps)
        if iteration >= burn_in:
            draws.append(state.point.position[:, 0])
            accepted.append(info.accepted)
    first = torch.stack(draws, 1)
    return (first.square(), first.cos()), float(torch.stack(accepted).double().mean())


# ---- what must be noticed ---------------------------------------------------------------------------------------


class WithoutConnection(PullBackMetric):
    """Half of the second derivative along the velocity."""

    def connection(self, position, velocity):
        return 0.5 * super().connection(position, velocity)

    def connection_matrix(self, position, velocity):
        return 0.5 * super().connection_matrix(position, velocity)


def kick_with_half_a_jacobian(point, velocity, time, field):
    """Forgets |G - tC(v⁺)|."""
    kicked, _ = lagrangian.lagrangian_kick(point, velocity, time, field)
    before = point.metric + time[:, None, None] * field.connection_matrix(point.position, velocity)
    return kicked, -torch.linalg.slogdet(before).logabsdet


class WithoutJacobian(LagrangianSystem):
    def _eager_step(self, step_size, velocity, *point, **options):
        log_volume, *rest = super()._eager_step(step_size, velocity, *point, **options)
        return (torch.zeros_like(log_volume), *rest)


class WithoutVolume(LagrangianSystem):
    """Accepts without the ½ log|G| of φ: the law of the other target from the posterior's steps."""

    def energy(self, point, velocity, exact):
        return super().energy(point, velocity, exact) - point.half_log_determinant


class WithoutReversal(LagrangianSystem):
    """A rejected chain goes on in the direction in which it was rejected."""

    def transition(self, state, *arguments):
        after, info = super().transition(state, *arguments)
        return after._replace(velocity=torch.where(info.accepted[:, None], after.velocity, -after.velocity)), info
