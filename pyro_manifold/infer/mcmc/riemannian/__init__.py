"""Dynamics in a metric that changes from point to point: the metric, its steps, and the kernel made of them."""
