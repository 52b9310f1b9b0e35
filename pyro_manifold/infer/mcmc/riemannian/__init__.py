"""Dynamics in a position-dependent metric: metric fields, integrator steps, and the kernel."""

from pyro_manifold.infer.mcmc.riemannian.lagrangian import (
    Point,
    explicit_kick,
    factorise,
    kinetic_energy,
    lagrangian_kick,
    leapfrog,
    point_at,
    refresh,
    velocity_from,
)
from pyro_manifold.infer.mcmc.riemannian.metric_field import DenseMetric, MetricField, PullBackMetric, metric_field
from pyro_manifold.infer.mcmc.riemannian.trajectory import LagrangianSettings, LagrangianTrajectory, PotentialAndMetric
