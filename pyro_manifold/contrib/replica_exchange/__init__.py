"""Replica exchange: swap.py  the swap move; ladder.py  temperatures; counts.py  swap statistics; run.py  the run."""

from pyro_manifold.contrib.replica_exchange.counts import Counts
from pyro_manifold.contrib.replica_exchange.exchange import ReplicaExchange
from pyro_manifold.contrib.replica_exchange.ladder import (
    ends_of_rounds,
    first_ladder,
    interpolated,
    ladder_of_equal_rejection,
)
from pyro_manifold.contrib.replica_exchange.prior_draws import PriorDraws
from pyro_manifold.contrib.replica_exchange.swap import BETA, ReplicaSettings, Swap

__all__ = ["ReplicaExchange"]
