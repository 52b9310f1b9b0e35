"""Hamiltonian Monte Carlo over sites of all kinds, on `mechanics` and `adaptation`."""

from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.mcmc.hmc.reflection import Reflections, reflected, reflections
