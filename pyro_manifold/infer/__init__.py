"""Inference; names and places follow `pyro.infer`, whose other names are here too."""

from typing import TYPE_CHECKING

from pyro_manifold.infer import autoguide
from pyro_manifold.infer.api import MCMC
from pyro_manifold.infer.evidence import compare_evidence
from pyro_manifold.infer.init_strategies import init_to_draws, init_to_guide
from pyro_manifold.infer.mcmc.arguments import Superchains
from pyro_manifold.infer.mcmc.hmc.ghmc import GHMC
from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.mcmc.hmc.warm_start import Tuning
from pyro_manifold.infer.mcmc.riemannian.msd import MSD
from pyro_manifold.infer.mcmc.running.goal import Until
from pyro_manifold.infer.mcmc.running.shards import Shards
from pyro_manifold.infer.mcmc.running.store import Store
from pyro_manifold.infer.mcmc.running.warmup_draws import WarmupDraws
from pyro_manifold.infer.mcmc.sgmcmc.osghmc import OSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.psgld import PSGLD
from pyro_manifold.infer.mcmc.sgmcmc.schedules import CosineCycles, PolynomialDecay
from pyro_manifold.infer.mcmc.sgmcmc.sghmc import SGHMC
from pyro_manifold.infer.mcmc.sgmcmc.sgld import SGLD
from pyro_manifold.infer.mcmc.sgmcmc.sgnht import SGNHT
from pyro_manifold.infer.mcmc.slice.geodesic_slice import GeodesicSlice
from pyro_manifold.infer.pathfinder import pathfinder
from pyro_manifold.infer.predictive import Predictive
from pyro_manifold.infer.smc.smc import SMC
from pyro_manifold.infer.svi.svi import SVI
from pyro_manifold.lookup import looked_up

if TYPE_CHECKING:
    from pyro_manifold.contrib.calibration import calibrate
    from pyro_manifold.contrib.cross_validation import held_out_cells, k_fold
    from pyro_manifold.contrib.learned_sampler import NNSGHMC, MetaSampler
    from pyro_manifold.contrib.learned_sampler.training import (
        MetaTask,
        MetaTraining,
        TrainingSettings,
        stein_scores,
        train_meta_sampler,
    )
    from pyro_manifold.contrib.replica_exchange import ReplicaExchange

__all__ = [
    "GHMC",
    "MCMC",
    "MSD",
    "NNSGHMC",
    "OHMC",
    "OSGHMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SMC",
    "SVI",
    "CosineCycles",
    "GeodesicSlice",
    "MetaSampler",
    "MetaTask",
    "MetaTraining",
    "PolynomialDecay",
    "Predictive",
    "ReplicaExchange",
    "Shards",
    "Store",
    "Superchains",
    "TrainingSettings",
    "Tuning",
    "Until",
    "WarmupDraws",
    "autoguide",
    "calibrate",
    "compare_evidence",
    "held_out_cells",
    "init_to_draws",
    "init_to_guide",
    "k_fold",
    "pathfinder",
    "stein_scores",
    "train_meta_sampler",
]

_CONTRIBUTED = {
    "calibration": ["calibrate"],
    "cross_validation": ["held_out_cells", "k_fold"],
    "learned_sampler": ["NNSGHMC", "MetaSampler"],
    "learned_sampler.training": ["MetaTask", "MetaTraining", "TrainingSettings", "stein_scores", "train_meta_sampler"],
    "replica_exchange": ["ReplicaExchange"],
}

__getattr__, __dir__ = looked_up(__name__, _CONTRIBUTED)
