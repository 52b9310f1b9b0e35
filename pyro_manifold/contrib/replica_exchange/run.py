"""Run of replicas at all levels, whose positions are those of the replicas at the posterior."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.contrib.replica_exchange.counts import Counts
from pyro_manifold.contrib.replica_exchange.ladder import ends_of_rounds, ladder_of_equal_rejection
from pyro_manifold.contrib.replica_exchange.swap import BETA, ReplicaSettings
from pyro_manifold.contrib.replica_exchange.tuning import LadderTuning
from pyro_manifold.density import Sites, Target, split
from pyro_manifold.diagnostics import MissedMass, named
from pyro_manifold.infer.descent import Energies
from pyro_manifold.infer.mcmc.mechanics import State
from pyro_manifold.infer.mcmc.running import Run
from pyro_manifold.infer.mcmc.transitions import Composition, Problem
from pyro_manifold.infer.smc import (
    Bound,
    Visited,
    evidence_about_modes,
    posterior_energies,
    unnormalised_priors,
)

_OF_REPLICAS = ("swap_probability", "came_from", "negative_log_likelihood")
_FEWEST_ROUND_TRIPS = 1
_RECENT = 256  # iterations
_SHARE_FOR_PRIOR = 0.04  # share of a run's evaluations spent on draws from the prior as initial values of descents


class ReplicaRun(Run[State, ReplicaSettings]):
    """Run of replica exchange; in warm-up, each round updates the ladder from its rejection rates.

    Args:
        problem: problem for all replicas; rows are ``level · groups + group``.
        parts: transitions and adaptation; the last transition is `Swap`.
        warmup_steps: iterations of warm-up.
        posterior: the target at β = 1.
        groups: number of groups of replicas, the number of chains of the result.
        configuration: as for `Run`.

    Attributes:
        counts: swap statistics since the ladder was last set; after warm-up, since its end.
        bound: lower bound of the evidence, as of the last `warn`.
    """

    tuning: LadderTuning
    is_of_kernel = False
    changing = (*Run.changing, "counts")

    def __init__(
        self,
        problem: Problem,
        parts: Composition[State, ReplicaSettings],
        warmup_steps: int,
        posterior: Target,
        groups: int,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem, parts, warmup_steps, configuration)
        self.chains, self._posterior = groups, posterior
        self._rounds = ends_of_rounds(warmup_steps)
        self.counts = Counts(self.state.position[BETA][::groups, 0].clone(), groups)
        self.bound, self._checked = Bound(), 0
        self._recent: deque[Sites] = deque(maxlen=_RECENT)

    @property
    def target(self) -> Target:
        return self._posterior

    @property
    def positions(self) -> Sites:
        """Positions of the chains at β = 1, ``{site: (groups, ...)}``."""
        cold = {block: x[-self.chains :] for block, x in self.state.position.items()}
        return split(self.problem.layout.unpack(cold))[1]

    def iterate(self) -> None:
        """Run one iteration of every replica."""
        super().iterate()
        self.counts.take_in(self.statistics)
        if self.iteration in self._rounds:
            self._set_ladder()
        elif self.iteration == self.warmup_steps:
            self.counts = Counts(self.counts.inverse_temperature, self.chains)
        self._recent.append(self.positions)
        swapped = self.statistics["came_from"] != len(self.counts.inverse_temperature) - 1
        self.statistics = {
            name: value[-self.chains :] for name, value in self.statistics.items() if name not in _OF_REPLICAS
        } | {"swapped": swapped[-self.chains :]}

    def _set_ladder(self) -> None:
        old = self.counts.inverse_temperature
        new = ladder_of_equal_rejection(old, self.counts.rejection)
        self.tuning.new_ladder(old, new)
        position = {**self.state.position, BETA: inverse_temperatures_of_rows(new, self.chains)}
        self.move_to(self.problem.layout.unpack(position))
        self.counts = Counts(new, self.chains)

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log evidence of the data and its standard error, regions of the prior with zero likelihood included."""
        found, error = self._evidence_of_replicas
        return found, self.bound.error_with(found, error)

    @property
    def _evidence_of_replicas(self) -> tuple[float, float]:
        fresh = self.tuning.fresh
        found, error = self.counts.log_evidence
        return found + math.log(fresh.finite / fresh.drawn), error

    def progress(self) -> dict[str, str]:
        """Return the figures shown in the progress bar."""
        return {"Λ": f"{self.counts.barrier:.2f}", "round trips": str(int(self.counts.round_trips.sum()))}

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return the entries of `MCMC.diagnostics` about replica exchange."""
        evidence, error = self.log_evidence
        counts = self.counts
        figures = {
            "inverse_temperatures": counts.inverse_temperature,
            "rejection_rates": counts.rejection,
            "barrier": counts.barrier,
            "round_trips": counts.round_trips,
            "expected_round_trips": counts.expected_round_trips,
            "log_evidence": evidence,
            "log_evidence_error": error,
        }
        return {"replica_exchange": figures}

    def summary_lines(self) -> list[str]:
        """Return the lines about replica exchange for a summary."""
        evidence, error = self.log_evidence
        counts = self.counts
        low, high = float(counts.rejection.min()), float(counts.rejection.max())
        known = not math.isnan(self.bound.log_evidence)
        bound = f" (at least {self.bound.sure:.3f} by the modes that descents find)" if known else ""
        return [
            f"Replica exchange: {len(counts.inverse_temperature)} levels, swaps rejected with probabilities {low:.2f} "
            f"to {high:.2f}, barrier {counts.barrier:.2f}, {int(counts.round_trips.sum())} round trips of "
            f"{self.chains} chains (expected {self.chains * counts.expected_round_trips:.0f})",
            f"log evidence {evidence:.3f} ± {error:.3f}{bound}",
        ]

    def _check(self) -> None:
        """Bound the evidence by modes found by descents, at a small share of the cost since the last check."""
        calls = (self.iteration - self._checked) * (self.tuning.example.num_steps + 1)
        pools = int(_SHARE_FOR_PRIOR * calls)
        if not pools or not self._recent or unnormalised_priors(self._posterior):
            return
        problem = self.problem
        # A separate generator, so that later draws do not depend on this check.
        random = torch.Generator(self.random.device).manual_seed(self.random.initial_seed())
        rows = len(self.state.energy)
        energies = Energies(posterior_energies(problem.batched, rows, self.state.energy), rows)
        prior = [self.tuning.fresh.many(random) for _ in range(pools)]
        states = [*prior, split(problem.layout.unpack(self.state.position))[1]]
        visited = Visited.joined([Visited(sites, energies(sites)[0]) for sites in states])
        draws = {name: torch.cat([one[name] for one in self._recent]) for name in states[0]}
        found = evidence_about_modes(energies, problem.target.manifolds, draws, visited, calls, random)
        self.bound = replace(found, log_evidence=found.log_evidence + self._posterior.log_measure)
        self._checked = self.iteration

    def warn(self) -> None:
        """Warn about chains without a round trip, and about modes that descents find and replicas have lost."""
        self._check()
        found, error = self._evidence_of_replicas
        if self.bound.contradicts(found, error, self.chains - 1):
            remedy = "use more chains and iterations, or SMC(init='modes')"
            message = self.bound.sentence("the replicas", found, error, remedy)
            warnings.warn(MissedMass(message, remedy="num_chains"), stacklevel=5)
        counts, levels = self.counts, len(self.counts.inverse_temperature)
        stuck = (counts.round_trips < _FEWEST_ROUND_TRIPS).nonzero().flatten().tolist()
        if stuck:
            enough = 1 + math.ceil(2 * counts.barrier)
            or_levels = f", or ReplicaExchange(levels={enough})" if enough > levels else ""
            message = (
                f"No replica of {named(stuck)} made a round trip from the prior to the posterior and back, so that "
                f"only the modes of its initial values are sampled. The barrier is at least {counts.barrier:.1f} "
                f"with {levels} levels: increase num_samples{or_levels}."
            )
            warnings.warn(MissedMass(message, chains=stuck, remedy="num_samples"), stacklevel=5)


def inverse_temperatures_of_rows(inverse_temperature: Tensor, groups: int) -> Tensor:
    """Return β of each row, ``(levels · groups, 1)``."""
    return inverse_temperature.repeat_interleave(groups).unsqueeze(-1)
