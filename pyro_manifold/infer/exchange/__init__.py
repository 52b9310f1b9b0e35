"""Replica exchange: swap.py  the swap move; ladder.py  temperatures; counts.py  swap statistics; run.py  the run."""
