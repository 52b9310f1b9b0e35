"""Stochastic-gradient MCMC kernels, which use minibatch gradients and no Metropolis test."""
