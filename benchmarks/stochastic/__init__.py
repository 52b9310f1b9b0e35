"""Stochastic-gradient kernels: bias, cost and the examples of the OHMC paper."""
