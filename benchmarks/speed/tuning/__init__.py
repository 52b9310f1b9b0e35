"""Cost of warm-up, and the worth of its choices."""
