"""Replica exchange: swap.py  the swap move; ladder.py  temperatures; counts.py  swap statistics; run.py  the run."""

from pyro_manifold.infer.exchange.counts import Counts
from pyro_manifold.infer.exchange.exchange import ReplicaExchange, as_tempering, check_tempering
from pyro_manifold.infer.exchange.ladder import ends_of_rounds, first_ladder, interpolated, ladder_of_equal_rejection
from pyro_manifold.infer.exchange.prior_draws import PriorDraws
from pyro_manifold.infer.exchange.swap import BETA, ReplicaSettings, Swap
