"""Kernels and the loop that runs them."""

from pyro_manifold.infer.mcmc.api import MCMC
from pyro_manifold.infer.mcmc.exchange.exchange import ReplicaExchange
from pyro_manifold.infer.mcmc.hmc.ghmc import GHMC
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.mcmc.hmc.warm_start import Tuning
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.on_disk import Store
from pyro_manifold.infer.mcmc.riemannian.msd import MSD
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import MetaSampler
from pyro_manifold.infer.mcmc.sgmcmc.meta.schooling import MetaTask, Schooling
from pyro_manifold.infer.mcmc.sgmcmc.meta.stein import stein_scores
from pyro_manifold.infer.mcmc.sgmcmc.meta.training import MetaTraining, train_meta_sampler
from pyro_manifold.infer.mcmc.sgmcmc.nnsghmc import NNSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.osghmc import OSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.psgld import PSGLD
from pyro_manifold.infer.mcmc.sgmcmc.schedules import CosineCycles, PolynomialDecay
from pyro_manifold.infer.mcmc.sgmcmc.sghmc import SGHMC
from pyro_manifold.infer.mcmc.sgmcmc.sgld import SGLD

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
    "CosineCycles",
    "HamiltonianKernel",
    "Kernel",
    "MetaSampler",
    "MetaTask",
    "MetaTraining",
    "PolynomialDecay",
    "ReplicaExchange",
    "Schooling",
    "Store",
    "Tuning",
    "stein_scores",
    "train_meta_sampler",
]
