"""Simulation-based calibration of a user's model and sampler: simulation, fits, ranked quantities."""
