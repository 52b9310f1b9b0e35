"""Hamiltonian Monte Carlo over sites of all kinds: mechanics, steps, trajectories, and what warm-up tunes of them."""
