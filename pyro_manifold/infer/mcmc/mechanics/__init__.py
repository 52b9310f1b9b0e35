"""Hamiltonian mechanics: momenta, kinetic energies and drifts of sites, leapfrog steps, trajectories."""

from pyro_manifold.infer.mcmc.mechanics.columns import ColumnMechanics
from pyro_manifold.infer.mcmc.mechanics.leapfrog import State, leapfrog_step, refresh, reversed_in_time, total_energy
from pyro_manifold.infer.mcmc.mechanics.low_rank_metric import LowRankMechanics, LowRankMetric
from pyro_manifold.infer.mcmc.mechanics.mechanics import (
    CayleyMechanics,
    EuclideanMechanics,
    GeodesicMechanics,
    Mechanics,
    Metric,
)
from pyro_manifold.infer.mcmc.mechanics.product import Metrics, ProductMechanics, at_temperature, block_mechanics
from pyro_manifold.infer.mcmc.mechanics.trajectory import HamiltonianSettings, Start, Trajectory, at_rest
