"""Sequential Monte Carlo: weights.py  annealing.py  the algorithm; tuning.py  its moves; smc.py  what users call."""
