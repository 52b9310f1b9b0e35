"""Cost of storing a run."""
