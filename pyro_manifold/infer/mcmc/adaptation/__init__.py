"""Adaptation in warm-up, from the states of the chains: starts, windows, step sizes, masses, trajectory lengths."""

from pyro_manifold.infer.mcmc.adaptation.adapter import Adaptation, Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.arrival import left_behind, representatives, warn_of_collapse
from pyro_manifold.infer.mcmc.adaptation.centring import Centring, Recentred
from pyro_manifold.infer.mcmc.adaptation.chain_step_sizes import ChainStepSizes
from pyro_manifold.infer.mcmc.adaptation.jumps import Transitions, of_all
from pyro_manifold.infer.mcmc.adaptation.lengths import INITIAL_LENGTH, SHORTEST_LENGTH, LengthChoice, TrajectoryLength
from pyro_manifold.infer.mcmc.adaptation.low_rank_masses import LowRankEstimator, geometric_mean, may_have_directions
from pyro_manifold.infer.mcmc.adaptation.mass_estimators import (
    ColumnEstimator,
    CovarianceEstimator,
    CurvatureEstimator,
    DiagonalEstimator,
    InverseMassEstimator,
    diagonal_inverse_mass,
)
from pyro_manifold.infer.mcmc.adaptation.masses import Estimators, Masses, estimators
from pyro_manifold.infer.mcmc.adaptation.particles import ParticleTuning, constant_gain, particle_tuning
from pyro_manifold.infer.mcmc.adaptation.slow_direction import SlowDirection
from pyro_manifold.infer.mcmc.adaptation.starts import nearer_starts
from pyro_manifold.infer.mcmc.adaptation.step_size import FEWEST_STEPS, DualAveragingStepSize
from pyro_manifold.infer.mcmc.adaptation.warmup import AdaptationSettings, WarmUp
from pyro_manifold.infer.mcmc.adaptation.windows import windows
