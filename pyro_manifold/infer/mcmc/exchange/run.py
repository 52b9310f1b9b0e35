"""A run of replicas at all levels, of which others see those at the posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_manifold.diagnostics.disagreement import named
from pyro_manifold.infer.mcmc.exchange.counts import Counts
from pyro_manifold.infer.mcmc.exchange.ladder import ends_of_rounds, ladder_of_equal_rejection
from pyro_manifold.infer.mcmc.exchange.swap import BETA, ReplicaSettings
from pyro_manifold.infer.mcmc.exchange.tuning import LadderTuning
from pyro_manifold.infer.mcmc.hmc.leapfrog import State
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.run import Parts, Run
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Target
from pyro_manifold.target.tempered import split

_OF_REPLICAS = ("swap_probability", "came_from", "misfit")
_FEWEST_ROUND_TRIPS = 1


class ReplicaRun(Run[State, ReplicaSettings]):
    """Replicas under way. In warm-up the ladder is set anew after each round, from the rejections of that round.

    Args:
        problem: of all replicas, ``level · groups + group``.
        parts: what moves them; the last transition is `Swap`.
        warmup_steps: iterations that adapt.
        posterior: the target at β = 1.
        groups: of replicas; as many chains as others see.
        configuration: as of `Run`.

    Attributes:
        counts: of the iterations since the ladder was last set, and of those after warm-up since that.
    """

    tuning: LadderTuning
    changing = (*Run.changing, "counts")

    def __init__(
        self,
        problem: Problem,
        parts: Parts[State, ReplicaSettings],
        warmup_steps: int,
        posterior: Target,
        groups: int,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem, parts, warmup_steps, configuration)
        self.chains, self._posterior = groups, posterior
        self._rounds = ends_of_rounds(warmup_steps)
        self.counts = Counts(self.state.position[BETA][::groups, 0].clone(), groups)

    @property
    def target(self) -> Target:
        return self._posterior

    @property
    def sites(self) -> Sites:
        """Where the chains at β = 1 are, ``{site: (groups, ...)}``, as `Run.sites`."""
        cold = {block: x[-self.chains :] for block, x in self.state.position.items()}
        return split(self.problem.layout.unpack(cold))[1]

    def advance(self) -> Sites:
        """One iteration of every replica; returns `sites`."""
        super().advance()
        self.counts.take_in(self.statistics)
        if self.iteration in self._rounds:
            self._set_ladder()
        elif self.iteration == self.warmup_steps:
            self.counts = Counts(self.counts.inverse_temperature, self.chains)
        swapped = self.statistics["came_from"] != len(self.counts.inverse_temperature) - 1
        self.statistics = {
            name: value[-self.chains :] for name, value in self.statistics.items() if name not in _OF_REPLICAS
        } | {"swapped": swapped[-self.chains :]}
        return self.sites

    def _set_ladder(self) -> None:
        old = self.counts.inverse_temperature
        new = ladder_of_equal_rejection(old, self.counts.rejection)
        self.tuning.new_ladder(old, new)
        position = {**self.state.position, BETA: inverse_temperatures_of_rows(new, self.chains)}
        self.state = self._renew(self.state, position)
        self.counts = Counts(new, self.chains)

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log evidence of the data and its standard error; where the likelihood is zero counts as such."""
        fresh = self.tuning.fresh
        found, error = self.counts.log_evidence
        return found + math.log(fresh.finite / fresh.drawn), error

    def figures(self) -> dict[str, str]:
        """For the progress bar."""
        return {"Λ": f"{self.counts.barrier:.2f}", "round trips": str(int(self.counts.round_trips.sum()))}

    def report(self) -> dict[str, Any]:
        """What `MCMC.diagnostics` says of the exchange."""
        evidence, error = self.log_evidence
        counts = self.counts
        return {
            "inverse temperatures": counts.inverse_temperature,
            "rejection rates": counts.rejection,
            "barrier": counts.barrier,
            "round trips": counts.round_trips,
            "expected round trips": counts.expected_round_trips,
            "log evidence": evidence,
            "log evidence error": error,
        }

    def sentence(self) -> str:
        """What a summary says of the exchange."""
        evidence, error = self.log_evidence
        counts = self.counts
        low, high = float(counts.rejection.min()), float(counts.rejection.max())
        return (
            f"Replica exchange: {len(counts.inverse_temperature)} levels, swaps rejected with probabilities {low:.2f} "
            f"to {high:.2f}, barrier {counts.barrier:.2f}, {int(counts.round_trips.sum())} round trips of "
            f"{self.chains} chains (expected {self.chains * counts.expected_round_trips:.0f})\n"
            f"log evidence {evidence:.3f} ± {error:.3f}"
        )

    def warn(self) -> None:
        """Warn where replicas do not travel."""
        counts, levels = self.counts, len(self.counts.inverse_temperature)
        stuck = (counts.round_trips < _FEWEST_ROUND_TRIPS).nonzero().flatten().tolist()
        if stuck:
            enough = 1 + math.ceil(2 * counts.barrier)
            or_levels = f", or ReplicaExchange(levels={enough})" if enough > levels else ""
            warnings.warn(
                f"No replica of {named(stuck)} went from the prior to the posterior and back, so that its modes are "
                f"those it began in. The barrier is at least {counts.barrier:.1f}, for {levels} levels: take more "
                f"iterations{or_levels}.",
                stacklevel=5,
            )


def inverse_temperatures_of_rows(inverse_temperature: Tensor, groups: int) -> Tensor:
    """β of each row, ``(levels · groups, 1)``."""
    return inverse_temperature.repeat_interleave(groups).unsqueeze(-1)
