"""Conversion of a Pyro model to pure functions of tensors, by Pyro's handlers."""
