"""Dynamics of the curved regression, right and wrong."""

import torch

from problems.curved_regression import embedding, metric, potential
from pyro_manifold.infer.mcmc.riemannian import (
    DenseMetric,
    LagrangianSettings,
    LagrangianTrajectory,
    PotentialAndMetric,
    PullBackMetric,
    lagrangian,
)
from pyro_manifold.infer.mcmc.transitions import Executable

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
    persistence=0.0,
    target="posterior",
    adjusted=True,
):
    """q₁² and cos q₁ of each draw, ``(chains, iterations)`` each, and the share accepted."""
    moves = kind(BLOCK, persistence=persistence, with_volume=target == "posterior", reversible=adjusted)
    model, random = PotentialAndMetric(potential, FIELDS[field]), torch.default_generator
    state = moves.state_at({BLOCK: 0.3 * torch.randn(chains, 2)}, model, random)
    trajectory = Executable(moves, lambda batch: model)
    settings = LagrangianSettings(torch.full_like(state.energy, step_size), num_steps, adjusted)
    trajectory.step.replace(state, [settings, settings], {"traced": "{reason}"})
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


class WithoutJacobian(LagrangianTrajectory):
    """Accepts as if steps kept their volume."""

    def step(self, *args):
        return super().step(*args)._replace(log_volume=torch.zeros_like(args[0].log_volume))


class WithoutVolume(LagrangianTrajectory):
    """Accepts without the ½ log|G| of φ: the distribution of the other target from the posterior's steps."""

    def energy(self, point, velocity, adjusted):
        return super().energy(point, velocity, adjusted) - point.half_log_determinant


class WithoutReversal(LagrangianTrajectory):
    """A rejected chain goes on in the direction in which it was rejected."""

    def finish(self, *args):
        after, found = super().finish(*args)
        kept = torch.where(found["accepted"][:, None], after.velocity, -after.velocity)
        return after._replace(velocity=kept), found
