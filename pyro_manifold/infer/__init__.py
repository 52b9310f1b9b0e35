"""Inference; each name stands where Pyro has its own."""

from pyro_manifold.infer import autoguide
from pyro_manifold.infer.mcmc import GHMC, MCMC, MSD, OHMC, OSGHMC, PSGLD, SGHMC, SGLD, CosineCycles, PolynomialDecay
from pyro_manifold.infer.predictive import Predictive
from pyro_manifold.infer.running_predictions import RunningPredictions

__all__ = [
    "GHMC",
    "MCMC",
    "MSD",
    "OHMC",
    "OSGHMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "CosineCycles",
    "PolynomialDecay",
    "Predictive",
    "RunningPredictions",
    "autoguide",
]
