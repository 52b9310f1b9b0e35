"""Inference; each name stands where Pyro has its own."""

from pyro_manifold.infer import autoguide
from pyro_manifold.infer.cross_validation import held_out_cells, k_fold
from pyro_manifold.infer.evidence import compare_evidence
from pyro_manifold.infer.mcmc import (
    GHMC,
    MCMC,
    MSD,
    NNSGHMC,
    OHMC,
    OSGHMC,
    PSGLD,
    SGHMC,
    SGLD,
    CosineCycles,
    MetaSampler,
    MetaTask,
    MetaTraining,
    PolynomialDecay,
    ReplicaExchange,
    Schooling,
    Store,
    Tuning,
    stein_scores,
    train_meta_sampler,
)
from pyro_manifold.infer.predictive import Predictive
from pyro_manifold.infer.running_predictions import RunningPredictions
from pyro_manifold.infer.smc.smc import SMC

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
    "SMC",
    "CosineCycles",
    "MetaSampler",
    "MetaTask",
    "MetaTraining",
    "PolynomialDecay",
    "Predictive",
    "ReplicaExchange",
    "RunningPredictions",
    "Schooling",
    "Store",
    "Tuning",
    "autoguide",
    "compare_evidence",
    "held_out_cells",
    "k_fold",
    "stein_scores",
    "train_meta_sampler",
]
