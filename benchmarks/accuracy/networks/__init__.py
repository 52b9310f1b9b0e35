"""Ways to the posterior of a small network against long chains of HMC."""
