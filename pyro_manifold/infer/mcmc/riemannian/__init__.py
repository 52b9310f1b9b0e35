"""Dynamics in a position-dependent metric: metric fields, integrator steps, and the kernel."""
