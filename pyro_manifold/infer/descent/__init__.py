"""Optimisation of many chains at once along manifolds: natural gradients and L-BFGS."""
