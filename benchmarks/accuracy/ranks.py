"""Rate at which the evidence finds the true rank: simulated PCA, all data sets as runs of one sequential Monte Carlo.

`python -m benchmarks.accuracy.ranks --datasets 100 --picture F`

Everything is drawn from the model: the rank evenly from 1 to 6, loadings, noise, rows. A fit needs the data only as
their scatter matrix YᵀY, which is a site that never moves (`Constant`), one for each run: so one traced graph, one
piece of native code and one annealing serve all data sets of a rank.

What can be identified is said without any fit. A component of variance λ (in units of the noise's) raises the log
likelihood of N rows by N/2 (λ - log(1 + λ)) on average, with a standard deviation of λ √(N/2), and costs its
D - k + 1 numbers, log(N)/2 each (Schwarz). Where the weakest true component is worth its price by two standard
deviations, the rank is called identifiable.
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from sklearn.decomposition import PCA
from torch import Tensor
from torch.distributions import biject_to, constraints, identity_transform

from benchmarks.pictures import pyplot
from benchmarks.study import option, read
from pyro_manifold.density import Sites, Target
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import OHMC, SMC
from pyro_manifold.manifolds import Constant

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
        """Number of standard deviations by which the weakest component is expected to be worth its price."""
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
    pyro.factor("rows", log_density(ROWS, COLUMNS, scatter.diagonal().sum(), explained, variances, noise))


def log_density(
    rows: int, columns: int, squares: Tensor | float, explained: Tensor, variances: Tensor, noise: Tensor
) -> Tensor:
    """Log likelihood of centred rows with covariance U diag(variances) Uᵀ + noise² I.

    Args:
        rows: how many.
        columns: how long they are.
        squares: sum of the squares of all entries.
        explained: that of the products with each column of U.
        variances: of the components, without the noise.
        noise: its standard deviation.
    """
    total = variances + noise**2
    left = (squares - (explained * variances / total).sum()) / noise**2
    log_determinant = total.log().sum() + (columns - len(variances)) * (noise**2).log()
    return -0.5 * (rows * (columns * math.log(2 * math.pi) + log_determinant) + left)


class OnDataSets(SMC):
    """Runs on several data sets: so many runs on each, one data set after the other."""

    def __init__(self, scatters: Tensor, runs: int, rank: int, particles: int) -> None:
        super().__init__(OHMC(partial(components, rank)), particles, len(scatters) * runs, disable_progbar=True)
        self._data = scatters.repeat_interleave(runs * particles // 16, 0).flatten(1)

    def _targets(self) -> tuple[list[Target], int]:
        (base, full), evaluations = super()._targets()
        rows, draw = iter(self._data), base.draw

        def draw_with_data() -> Sites:
            return {**draw(), "scatter": next(rows)}

        base.draw = draw_with_data  # type: ignore[method-assign]
        return [base, full], evaluations


def log_evidences(data: list[Simulated], rank: int, runs: int, particles: int) -> Tensor:
    """``(data sets, runs)``."""
    pyro.set_rng_seed(rank)
    smc = OnDataSets(torch.stack([one.y.T @ one.y for one in data]), runs, rank, particles)
    # In silence, for data sets differ.
    return smc.run_program(smc.kernel.program((), {})).log_evidences.reshape(len(data), runs)


def by_criterion(one: Simulated) -> int:
    """The rank that Schwarz's criterion (BIC) chooses, by the largest likelihood (Tipping & Bishop 1999)."""
    variances = torch.linalg.svdvals(one.y).square() / ROWS

    def criterion(rank: int) -> float:
        noise = variances[rank:].mean()
        likelihood = -0.5 * ROWS * (variances[:rank].log().sum() + (COLUMNS - rank) * noise.log() + COLUMNS)
        numbers = COLUMNS * rank - rank * (rank - 1) // 2 + 1
        return float(likelihood) - numbers / 2 * math.log(ROWS)

    return max([*RANKS, RANKS.stop], key=criterion)


def by_laplace(one: Simulated) -> int:
    """The rank of the largest evidence by Minka's Laplace approximation (2000), in scikit-learn."""
    return int(PCA(n_components="mle").fit(one.y.numpy()).n_components_)


def report(data: list[Simulated], found: Tensor) -> str:
    """Figures of the evidences ``(data sets, ranks, runs)``."""
    evidence = found.logsumexp(-1) - math.log(found.shape[-1])
    true = torch.tensor([one.rank for one in data])
    identifiable = torch.tensor([one.margin > 2 for one in data])
    chosen = {
        "evidence": 1 + evidence.argmax(1),
        "Minka's Laplace approximation": torch.tensor([by_laplace(one) for one in data]),
        "BIC": torch.tensor([by_criterion(one) for one in data]),
    }
    lines = [f"{len(data)} data sets, {int(identifiable.sum())} of them identifiable"]
    for name, ranks in chosen.items():
        right = ranks == true
        lines.append(
            f"{name}: right {int(right[identifiable].sum())} of {int(identifiable.sum())} identifiable, "
            f"{int(right[~identifiable].sum())} of {int((~identifiable).sum())} others; "
            f"too low {int((ranks < true).sum())}, too high {int((ranks > true).sum())}"
        )
    probability = evidence[:, : RANKS.stop - 1].softmax(1)  # there are no others
    largest, rank = probability.max(1)
    for low, high in ((0.0, 0.6), (0.6, 0.9), (0.9, 0.99), (0.99, 1.01)):
        here = (largest >= low) & (largest < high)
        if here.any():
            right = (rank[here] + 1 == true[here]).double().mean()
            lines.append(
                f"largest probability {low}-{min(high, 1.0)}: {int(here.sum())} data sets, "
                f"said {largest[here].mean():.2f}, right {right:.2f}"
            )
    errors = found.std(-1) / found.shape[-1] ** 0.5
    lines.append(f"standard error of a log evidence: median {errors.median():.2f}, largest {errors.max():.2f}")
    return "\n".join(lines)


_LEFT, _TOP = -6.0, 30.0  # beyond them points stand at the edge of the picture


def picture(data: list[Simulated], found: Tensor, file: str) -> None:
    """Draw the preference of the evidence for the true rank against its expectation."""
    plt = pyplot()

    evidence = found.logsumexp(-1)
    ax = plt.subplots(figsize=(5.5, 3.4), layout="tight")[1]
    for rank, colour in zip(RANKS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"), strict=True):
        mine = [k for k, one in enumerate(data) if one.rank == rank]
        others = [column for column in range(evidence.shape[1]) if column != rank - 1]
        lead = evidence[mine, rank - 1] - evidence[mine][:, others].amax(1)
        margins = torch.tensor([data[k].margin for k in mine])
        ax.plot(margins.clamp(min=_LEFT), lead.clamp(max=_TOP), "o", ms=4, color=colour, label=f"rank {rank}")
    ax.axhline(0, color="0.6", lw=1)
    ax.axvline(2, color="0.6", lw=1, ls=":")
    ax.set(xlabel="expected worth of the weakest component (standard deviations)")
    ax.set_ylabel("log evidence of the true rank\nabove the best other (nats)")
    ax.legend(frameon=False, ncols=2, fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    ax.figure.savefig(file, dpi=150)


def main(argv: list[str] | None = None) -> None:
    arguments = read(
        __doc__, argv, datasets=100, at_a_time=option(42, "data sets that are annealed together"), runs=4,
        particles=256, results=option(None, "file for the log evidences, read if it is there", type=Path),
        picture=option(None, "file for the picture"),
    )  # fmt: skip
    data = [simulate(k) for k in range(arguments.datasets)]
    if arguments.results is not None and arguments.results.exists():
        found = torch.as_tensor(np.load(arguments.results)["found"])
    else:
        found = all_log_evidences(data, arguments.at_a_time, arguments.runs, arguments.particles)
        if arguments.results is not None:
            np.savez(arguments.results, found=found.numpy())
    print(report(data, found))
    if arguments.picture:
        picture(data, found, arguments.picture)


def all_log_evidences(data: list[Simulated], at_a_time: int, runs: int, particles: int) -> Tensor:
    """``(data sets, ranks, runs)``, of the true ranks and one more."""
    ranks = [*RANKS, RANKS.stop]
    found = torch.empty(len(data), len(ranks), runs)
    for column, rank in enumerate(ranks):
        start = time.process_time()
        for first in range(0, len(data), at_a_time):
            part = slice(first, first + at_a_time)
            found[part, column] = log_evidences(data[part], rank, runs, particles)
        print(f"rank {rank}: {time.process_time() - start:.0f} CPU s", flush=True)
    return found


if __name__ == "__main__":
    main()
