"""Sequential Monte Carlo: smc.py  user interface; annealing.py, weights.py  algorithm."""

from pyro_manifold.infer.smc.annealing import AnnealingSettings, Evidence, Level, Visited, with_room
from pyro_manifold.infer.smc.bound import Bound, evidence_about_modes, least_explained, posterior_energies
from pyro_manifold.infer.smc.end_of_run import warn, warn_of_differences
from pyro_manifold.infer.smc.initialisation import (
    likelihood_terms,
    posterior_of,
    problem_with_finite_starts,
    unnormalised_priors,
)
from pyro_manifold.infer.smc.local_coordinates import LocalCoordinates
from pyro_manifold.infer.smc.modes import (
    GaussianMixture,
    NoModeError,
    find_modes,
    fisher_metric,
    laplace_mixture,
    mixture_about_modes,
)
from pyro_manifold.infer.smc.results import Result
from pyro_manifold.infer.smc.sharded import Job
from pyro_manifold.infer.smc.smc import SMC
from pyro_manifold.infer.smc.weights import (
    effective_share,
    log_mean_weight,
    next_inverse_temperature,
    systematic_resampling,
)
