"""Hamiltonian Monte Carlo over sites of all kinds: mechanics, steps, trajectories, and their adaptation in warm-up."""
