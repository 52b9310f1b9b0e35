"""Optimisation of many chains in parallel along manifolds: natural gradients and L-BFGS."""

from pyro_manifold.infer.descent.energies import Energies
from pyro_manifold.infer.descent.local_gaussian import LocalGaussian
from pyro_manifold.infer.descent.natural_gradient import NaturalGradient
from pyro_manifold.infer.descent.points import Descent, Place, Points, S, rows_of, with_rows
from pyro_manifold.infer.descent.quasi_newton import QuasiNewton
