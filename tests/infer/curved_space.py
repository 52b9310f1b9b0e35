"""Dynamics of the curved regression, right and wrong."""

import torch

from problems.curved_regression import embedding, metric, potential
from pyro_manifold.infer.mcmc import lagrangian
from pyro_manifold.infer.mcmc.lagrangian_system import LagrangianSystem
from pyro_manifold.infer.mcmc.metric_field import DenseMetric, PullBackMetric

BLOCK = ("q",)
FIELDS = {"pull-back": PullBackMetric(embedding, 2, 7), "dense": DenseMetric(metric)}


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
