"""Optimisation of many chains in parallel along manifolds: natural gradients and L-BFGS."""
