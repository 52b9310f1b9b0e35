"""Stochastic variational inference by traced gradients."""
