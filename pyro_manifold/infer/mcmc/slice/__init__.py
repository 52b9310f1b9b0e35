"""Slice sampling along geodesics: no gradient, no step size."""

from pyro_manifold.infer.mcmc.slice.geodesic_slice import Bracket, Line, line_on
