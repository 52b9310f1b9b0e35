"""Zlochin & Baram (Neural Computation 13, 2001): manifold stochastic dynamics."""
