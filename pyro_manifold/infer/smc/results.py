"""What sequential Monte Carlo leaves, and the same of runs in other processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.smc.annealing import Level
from pyro_manifold.infer.smc.weights import log_mean_weight
from pyro_manifold.target.batched import Sites

Told = dict[str, Tensor]
"""What a shard tells beside its particles."""


@dataclass(frozen=True)
class Result:
    """The end of all runs.

    Attributes:
        samples: the particles at β = 1, ``{site: (runs, particles, ...)}``.
        log_density: of each, unnormalised, ``(runs, particles)``; see `to_inferencedata`.
        log_evidences: ``(runs,)``.
        variances: of these, from how the chains of a run differ, ``(runs,)``.
        shared_variance: of an error that all runs have together: of the share of the prior where the likelihood is not
            zero. ``(parts,)``, for so many parts of the runs.
        levels: what happened.
        evaluations: of the density, to find modes, of each part.
    """

    samples: Sites
    log_density: Tensor
    log_evidences: Tensor
    variances: Tensor
    shared_variance: Tensor
    levels: list[Level]
    evaluations: list[int]

    @property
    def log_evidence(self) -> float:
        """Logarithm of the mean evidence."""
        return float(log_mean_weight(self.log_evidences))

    @property
    def error_between(self) -> float:
        """Standard error of `log_evidence` by differences between runs (jackknife); NaN for one run."""
        runs = len(self.log_evidences)
        if runs < 2:
            return math.nan
        others = self.log_evidences.expand(runs, runs)[~torch.eye(runs, dtype=torch.bool)].reshape(runs, runs - 1)
        return float((runs - 1) ** 0.5 * log_mean_weight(others).std(correction=0))

    @property
    def error_within(self) -> float:
        """Standard error of `log_evidence` by differences between chains, as if evidences were log-normal."""
        return float((self.variances.expm1().mean() / len(self.variances)).log1p().sqrt())

    @property
    def error(self) -> float:
        """The larger one of the two, with what all runs have together."""
        found = max(self.error_within, 0.0 if math.isnan(self.error_between) else self.error_between)
        parts = len(self.shared_variance)
        return float((found**2 + self.shared_variance.mean() / parts) ** 0.5)

    # ---- as tensors, which travel between processes -------------------------------------------------------------

    def told(self) -> Told:
        """All but the samples."""
        levels = {
            f"level {field.name}": torch.stack([torch.as_tensor(getattr(level, field.name)) for level in self.levels])
            for field in fields(Level)
        }
        numbers = {"evaluations": torch.tensor(self.evaluations), "shared_variance": self.shared_variance}
        of_runs = {name: getattr(self, name) for name in ("log_density", "log_evidences", "variances")}
        return {**levels, **numbers, **of_runs}

    @classmethod
    def of_shards(cls, samples: Sequence[Sites], told: Sequence[Told]) -> Result:
        """The runs of all shards, one after the other; those that arrived early stay at their last level."""
        joined = {name: torch.cat([each[name] for each in told]) for name in told[0] if not name.startswith("level ")}
        count = max(len(each["level moves"]) for each in told)
        levels = [_joined([_level(each, k) for each in told]) for k in range(count)]
        return cls(
            {name: torch.cat([each[name] for each in samples]) for name in samples[0]},
            joined["log_density"],
            joined["log_evidences"],
            joined["variances"],
            joined["shared_variance"],
            levels,
            joined["evaluations"].tolist(),
        )


def _level(told: Told, k: int) -> Level:
    found = {field.name: told[f"level {field.name}"] for field in fields(Level)}
    last = len(found["moves"]) - 1
    values: dict[str, Any] = {name: value[min(k, last)] for name, value in found.items()}
    values |= {name: int(values[name]) if k <= last else 0 for name in ("moves", "steps")}
    return Level(**values)


def _joined(levels: Sequence[Level]) -> Level:
    """Shards side by side; moves and steps are of the one that made most."""
    parts = [asdict(level) for level in levels]
    values: dict[str, Any] = {
        name: torch.cat([part[name] for part in parts])
        if torch.is_tensor(parts[0][name])
        else max(p[name] for p in parts)
        for name in parts[0]
    }
    return Level(**values)
