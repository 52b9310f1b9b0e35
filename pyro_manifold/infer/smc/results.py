"""Results of sequential Monte Carlo, also of runs in other processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.density import Sites
from pyro_manifold.infer.smc.annealing import Level
from pyro_manifold.infer.smc.bound import Bound
from pyro_manifold.infer.smc.edges import NumericalProblems
from pyro_manifold.infer.smc.weights import log_mean_weight

Tensors = dict[str, Tensor]
"""Results of a shard in addition to its particles."""


@dataclass(frozen=True)
class Result:
    """Result of all runs.

    Attributes:
        samples: particles at β = 1, ``{site: (runs, particles, ...)}``.
        log_density: unnormalised log density of each particle, ``(runs, particles)``; see `to_inferencedata`.
        log_evidences: log evidence estimates of the runs, ``(runs,)``.
        variances: variances of these, estimated from differences between the chains of a run, ``(runs,)``.
        shared_variance: variance of an error common to all runs, that of the probability under the prior that the
            likelihood is not zero; ``(parts,)``, for each part (shard) of the runs.
        levels: statistics of each level.
        evaluations: number of evaluations of the density to find modes, for each part.
        bounds: lower bounds of the evidence, for each part; see `pyro_manifold.infer.smc.bound`.
        edges: counts of numerical problems, for each part.
    """

    samples: Sites
    log_density: Tensor
    log_evidences: Tensor
    variances: Tensor
    shared_variance: Tensor
    levels: list[Level]
    evaluations: list[int]
    bounds: list[Bound]
    edges: list[NumericalProblems] = field(default_factory=list)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the mean evidence over runs."""
        return float(log_mean_weight(self.log_evidences))

    @property
    def error_between(self) -> float:
        """Standard error of `log_evidence` from differences between runs (jackknife); NaN for one run."""
        runs = len(self.log_evidences)
        if runs < 2:
            return math.nan
        others = self.log_evidences.expand(runs, runs)[~torch.eye(runs, dtype=torch.bool)].reshape(runs, runs - 1)
        return float((runs - 1) ** 0.5 * log_mean_weight(others).std(correction=0))

    @property
    def error_within(self) -> float:
        """Standard error of `log_evidence` from differences between chains, for log-normal evidences."""
        return float((self.variances.expm1().mean() / len(self.variances)).log1p().sqrt())

    @property
    def bound(self) -> Bound:
        """Largest lower bound of all parts."""
        return max(self.bounds, key=lambda bound: bound.sure)

    @property
    def all_edges(self) -> NumericalProblems:
        """Counts of numerical problems, summed over all parts."""
        return NumericalProblems(*[sum(numbers) for numbers in zip(*self.edges, strict=True)])

    @property
    def error_of_particles(self) -> float:
        """Larger of the two standard errors, combined with the error common to all runs."""
        found = max(self.error_within, 0.0 if math.isnan(self.error_between) else self.error_between)
        parts = len(self.shared_variance)
        return float((found**2 + self.shared_variance.mean() / parts) ** 0.5)

    @property
    def error(self) -> float:
        """Larger of `error_of_particles` and the distance of `log_evidence` below its lower bound."""
        return self.bound.error_with(self.log_evidence, self.error_of_particles)

    # ---- conversion to tensors, which are sent between processes ------------------------------------------------

    def tensors(self) -> Tensors:
        """Return everything except the samples, as tensors."""
        levels = {
            f"level {each.name}": torch.stack([torch.as_tensor(getattr(level, each.name)) for level in self.levels])
            for each in fields(Level)
        }
        numbers = {
            "evaluations": torch.tensor(self.evaluations),
            "shared_variance": self.shared_variance,
            "bounds": torch.tensor([astuple(bound) for bound in self.bounds], dtype=torch.float64),
            "edges": torch.tensor(self.edges).reshape(-1, len(NumericalProblems._fields)),
        }
        of_runs = {name: getattr(self, name) for name in ("log_density", "log_evidences", "variances")}
        return {**levels, **numbers, **of_runs}

    @classmethod
    def of_shards(cls, samples: Sequence[Sites], parts: Sequence[Tensors]) -> Result:
        """Concatenate the runs of all shards; shards with fewer levels repeat their last one."""
        joined = {name: torch.cat([each[name] for each in parts]) for name in parts[0] if not name.startswith("level ")}
        count = max(len(each["level moves"]) for each in parts)
        levels = [_joined([_level(each, k) for each in parts]) for k in range(count)]
        return cls(
            {name: torch.cat([each[name] for each in samples]) for name in samples[0]},
            joined["log_density"],
            joined["log_evidences"],
            joined["variances"],
            joined["shared_variance"],
            levels,
            joined["evaluations"].tolist(),
            [Bound(*numbers) for numbers in joined["bounds"].tolist()],
            [NumericalProblems(*numbers) for numbers in joined["edges"].tolist()],
        )


def _level(parts: Tensors, k: int) -> Level:
    found = {each.name: parts[f"level {each.name}"] for each in fields(Level)}
    last = len(found["moves"]) - 1
    values: dict[str, Any] = {name: value[min(k, last)] for name, value in found.items()}
    values |= {name: int(values[name]) if k <= last else 0 for name in ("moves", "steps")}
    return Level(**values)


def _joined(levels: Sequence[Level]) -> Level:
    """Concatenate the levels of shards; moves and steps are the maximum over shards."""
    parts = [asdict(level) for level in levels]
    values: dict[str, Any] = {
        name: torch.cat([part[name] for part in parts])
        if torch.is_tensor(parts[0][name])
        else max(p[name] for p in parts)
        for name in parts[0]
    }
    return Level(**values)
