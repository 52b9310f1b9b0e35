"""Inference; each name stands where Pyro has its own."""

from pyro_manifold.infer.mcmc import MCMC, OHMC

__all__ = ["MCMC", "OHMC"]
