"""Whether MSD has the right distribution."""
