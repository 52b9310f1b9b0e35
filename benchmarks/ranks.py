"""How often the evidence finds the true rank: simulated PCA, all data sets as runs of one sequential Monte Carlo.

`python -m benchmarks.ranks --datasets 100 --picture F`

Everything is drawn from the model: the rank evenly from 1 to 6, loadings, noise, rows. A fit needs the data only as
their scatter matrix YᵀY, which is a site that never moves (`Constant`), one for each run: so one traced graph, one
piece of native code and one annealing serve all data sets of a rank.

What can be identified is said without any fit. A component of variance λ (in units of the noise's) raises the log
likelihood of N rows by N/2 (λ - log(1 + λ)) on average, with a standard deviation of λ √(N/2), and costs its
D - k + 1 numbers, log(N)/2 each (Schwarz). Where the weakest true component is worth its price by two standard
deviations, the rank is called identifiable.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import biject_to, constraints, identity_transform

from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import OHMC, SMC
from pyro_manifold.manifolds import Constant
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Target

COLUMNS, ROWS, RANKS = 12, 150, range(1, 7)
SPREAD_OF_NOISE = 0.5  # of its logarithm


@dataclass
class Simulated:
    """One data set, and what it was made from.

    Attributes:
        rank: the true one.
        variances: of its components, in units of the noise's, the largest first.
        y: ``(rows, columns)``.
    """

    rank: int
    variances: Tensor
    y: Tensor

    @property
    def margin(self) -> float:
        """By how many standard deviations the weakest component is expected to be worth its price."""
        weakest = float(self.variances[-1])
        gain = ROWS / 2 * (weakest - math.log1p(weakest))
        price = (COLUMNS - self.rank + 1) / 2 * math.log(ROWS)
        return (gain - price) / (weakest * math.sqrt(ROWS / 2))


def simulate(seed: int) -> Simulated:
    """A data set from the model."""
    pyro.set_rng_seed(seed)
    rank = int(torch.randint(RANKS.start, RANKS.stop, ()))
    noise = dist.LogNormal(0.0, SPREAD_OF_NOISE).sample()
    loadings = torch.randn(COLUMNS, rank)
    y = torch.randn(ROWS, rank) @ loadings.T + noise * torch.randn(ROWS, COLUMNS)
    return Simulated(rank, (torch.linalg.svdvals(loadings) / noise).square(), y)


class Fixed(constraints.Constraint):
    """Vectors that stay where they are."""

    event_dim = 1
    manifold = Constant()

    def check(self, value: Tensor) -> Tensor:
        return torch.ones(value.shape[:-1], dtype=torch.bool)


biject_to.register(Fixed, lambda constraint: identity_transform)


class Given(TorchDistribution):
    """Numbers that are given."""

    support = Fixed()
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, size: int) -> None:
        super().__init__((), (size,), validate_args=False)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        return torch.zeros(*sample_shape, *self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return 0 * value.sum(-1)


def components(rank: int) -> None:
    """Probabilistic PCA of centred rows, whose scores are integrated out: the density of a scatter matrix."""
    scatter = pyro.sample("scatter", Given(COLUMNS**2)).reshape(COLUMNS, COLUMNS)
    noise = pyro.sample("noise", dist.LogNormal(0.0, SPREAD_OF_NOISE))
    U = pyro.sample("U", StiefelUniform(COLUMNS, rank))
    variances = pyro.sample("scales", NormalSingularValues(COLUMNS, rank)).square()
    explained = (U * (scatter @ U)).sum(-2)
    total = variances + noise**2
    squares = (scatter.diagonal().sum() - (explained * variances / total).sum()) / noise**2
    log_determinant = total.log().sum() + (COLUMNS - rank) * (noise**2).log()
    pyro.factor("rows", -0.5 * (ROWS * (COLUMNS * math.log(2 * math.pi) + log_determinant) + squares))


class OnDataSets(SMC):
    """Runs on several data sets: so many runs on each, one data set after the other."""

    def __init__(self, scatters: Tensor, runs: int, rank: int, particles: int) -> None:
        super().__init__(OHMC(partial(components, rank)), particles, len(scatters) * runs, disable_progbar=True)
        self._data = scatters.repeat_interleave(runs * particles // 16, 0).flatten(1)

    def _targets(self) -> list[Target]:
        base, full = super()._targets()
        rows, draw = iter(self._data), base.draw

        def draw_with_data() -> Sites:
            return {**draw(), "scatter": next(rows)}

        base.draw = draw_with_data  # type: ignore[method-assign]
        return [base, full]

    def _warn_of_differences(self) -> None:
        """Data sets differ."""


def log_evidences(data: list[Simulated], rank: int, runs: int, particles: int) -> Tensor:
    """``(data sets, runs)``."""
    pyro.set_rng_seed(rank)
    smc = OnDataSets(torch.stack([one.y.T @ one.y for one in data]), runs, rank, particles)
    smc.run()
    return smc.log_evidences.reshape(len(data), runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument("--at-a-time", type=int, default=25, help="data sets that are annealed together")
    parser.add_argument("--particles", type=int, default=256)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file for the picture")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    data = [simulate(1000 * arguments.seed + k) for k in range(arguments.datasets)]
    ranks = [*RANKS, RANKS.stop]
    found = torch.empty(len(data), len(ranks), arguments.runs)
    for column, rank in enumerate(ranks):
        start = time.process_time()
        for first in range(0, len(data), arguments.at_a_time):
            part = slice(first, first + arguments.at_a_time)
            found[part, column] = log_evidences(data[part], rank, arguments.runs, arguments.particles)
        print(f"rank {rank}: {time.process_time() - start:.0f} CPU s", flush=True)
    np.savez("/tmp/rk/found.npz", found=found.numpy())


if __name__ == "__main__":
    main()
