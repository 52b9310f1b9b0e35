"""Stochastic-gradient kernels: steps along gradients of minibatches, without a Metropolis test."""
