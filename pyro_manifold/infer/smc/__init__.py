"""Sequential Monte Carlo: smc.py  user interface; annealing.py, weights.py  algorithm; tuning.py  adaptation."""
