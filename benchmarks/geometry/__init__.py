"""Benchmarks of MSD: sampling in the geometry of the model."""
