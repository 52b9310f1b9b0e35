"""Dynamics of the curved regression, right and wrong."""

import torch

from problems.curved_regression import embedding, metric, potential
from pyro_manifold.infer.mcmc.riemannian import lagrangian
from pyro_manifold.infer.mcmc.riemannian.metric_field import DenseMetric, PullBackMetric
from pyro_manifold.infer.mcmc.riemannian.step import LagrangianStep
from pyro_manifold.infer.mcmc.riemannian.trajectory import LagrangianSettings, LagrangianTrajectory

BLOCK = ("q",)
FIELDS = {"pull-back": PullBackMetric(embedding, 2, 7), "dense": DenseMetric(metric)}


def sample(
    step_size,
    num_steps,
    iterations,
    burn_in,
    chains,
    *,
    field="pull-back",
    kind=LagrangianTrajectory,
    step=LagrangianStep,
    persistence=0.0,
    target="posterior",
    adjusted=True,
):
    """q₁² and cos q₁ of each draw, ``(chains, iterations)`` each, and the share accepted."""
    step = step(potential, FIELDS[field], with_volume=target == "posterior", reversible=adjusted)
    trajectory = kind(step, BLOCK, num_steps=num_steps, persistence=persistence, adjusted=adjusted)
    random = torch.default_generator
    state = trajectory.state_at({BLOCK: 0.3 * torch.randn(chains, 2)}, random)
    step.trace(state.point)
    settings = LagrangianSettings(torch.full_like(state.energy, step_size), adjusted)
    draws, accepted = [], []
    for iteration in range(burn_in + iterations):
        state, statistics = trajectory(state, settings, random)
        if iteration >= burn_in:
            draws.append(state.point.position[:, 0])
            accepted.append(statistics["accepted"])
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


class WithoutJacobian(LagrangianStep):
    def _flat(self, step_size, velocity, *point, **options):
        log_volume, *rest = super()._flat(step_size, velocity, *point, **options)
        return (torch.zeros_like(log_volume), *rest)


class WithoutVolume(LagrangianTrajectory):
    """Accepts without the ½ log|G| of φ: the distribution of the other target from the posterior's steps."""

    def energy(self, point, velocity, adjusted):
        return super().energy(point, velocity, adjusted) - point.half_log_determinant


class WithoutReversal(LagrangianTrajectory):
    """A rejected chain goes on in the direction in which it was rejected."""

    def __call__(self, state, settings, random):
        after, found = super().__call__(state, settings, random)
        kept = torch.where(found["accepted"][:, None], after.velocity, -after.velocity)
        return after._replace(velocity=kept), found
