"""Running of chains: sampling loop, draw storage, stopping rules, shards and end-of-run warnings."""

from pyro_manifold.infer.mcmc.running.code_checks import CodeChecks
from pyro_manifold.infer.mcmc.running.draw_storage import DrawStorage, InMemory
from pyro_manifold.infer.mcmc.running.end_of_run import warn_of_chains
from pyro_manifold.infer.mcmc.running.functionals import IdentifiedQuantities
from pyro_manifold.infer.mcmc.running.goal import Goal, Until, as_until, default_goals, identified_quantities, lengths
from pyro_manifold.infer.mcmc.running.loop import Buffers, Consumer, Iteration, sample
from pyro_manifold.infer.mcmc.running.on_disk import OnDisk
from pyro_manifold.infer.mcmc.running.record import Record
from pyro_manifold.infer.mcmc.running.reference_points import ReferencePoints, difference, named
from pyro_manifold.infer.mcmc.running.run import Run
from pyro_manifold.infer.mcmc.running.sampling import Sampling
from pyro_manifold.infer.mcmc.running.sharded import ShardedDraws, seed_of_all
from pyro_manifold.infer.mcmc.running.shards import (
    Job,
    Outcome,
    Shards,
    is_loss,
    outcome_of,
    outcomes_of,
    run_shard,
    run_shards,
)
from pyro_manifold.infer.mcmc.running.store import Store, as_store
from pyro_manifold.infer.mcmc.running.symmetry_record import SymmetryRecord
from pyro_manifold.infer.mcmc.running.warmup_draws import WarmupDraws
