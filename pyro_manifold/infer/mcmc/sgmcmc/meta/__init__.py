"""Meta-learned stochastic-gradient sampler: its networks, its step, and its files."""
