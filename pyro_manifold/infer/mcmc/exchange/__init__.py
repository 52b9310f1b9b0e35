"""Replica exchange: swap.py  the move; ladder.py  where levels stand; counts.py  what swaps tell; run.py  all of it."""
