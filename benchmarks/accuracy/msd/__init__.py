"""Distribution of MSD."""
