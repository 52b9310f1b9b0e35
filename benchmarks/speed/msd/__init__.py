"""Cost of MSD."""
