"""Hamiltonian Monte Carlo over sites of all kinds: mechanics, steps, trajectories, and their adaptation in warm-up."""

from pyro_manifold.infer.mcmc.hmc.arrival import left_behind, representatives, warn_of_collapse
from pyro_manifold.infer.mcmc.hmc.columns import ColumnMechanics
from pyro_manifold.infer.mcmc.hmc.descent import nearer_starts
from pyro_manifold.infer.mcmc.hmc.functionals import IdentifiedQuantities, coordinates
from pyro_manifold.infer.mcmc.hmc.jumps import of_all
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel, block_mechanics
from pyro_manifold.infer.mcmc.hmc.leapfrog import State, leapfrog_step, refresh, reversed_in_time, total_energy
from pyro_manifold.infer.mcmc.hmc.lengths import INITIAL_LENGTH, SHORTEST_LENGTH, LengthChoice, TrajectoryLength
from pyro_manifold.infer.mcmc.hmc.low_rank_masses import LowRankEstimator, geometric_mean
from pyro_manifold.infer.mcmc.hmc.low_rank_metric import LowRankMechanics, LowRankMetric
from pyro_manifold.infer.mcmc.hmc.mass_estimators import (
    ColumnEstimator,
    CurvatureEstimator,
    DiagonalEstimator,
    diagonal_inverse_mass,
)
from pyro_manifold.infer.mcmc.hmc.masses import Masses
from pyro_manifold.infer.mcmc.hmc.mechanics import (
    CayleyMechanics,
    EuclideanMechanics,
    GeodesicMechanics,
    Mechanics,
    Metric,
)
from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.mcmc.hmc.product import Metrics, ProductMechanics, at_temperature
from pyro_manifold.infer.mcmc.hmc.reflection import draw_reflections, reflected, reflections
from pyro_manifold.infer.mcmc.hmc.step_size import FEWEST_STEPS, StepSize, windows
from pyro_manifold.infer.mcmc.hmc.trajectory import HamiltonianSettings, Trajectory, at_rest
from pyro_manifold.infer.mcmc.hmc.warmup import AdaptationSettings
