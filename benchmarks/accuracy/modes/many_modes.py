"""Replica exchange against sequential Monte Carlo, at equal numbers of gradients.

    python -m benchmarks.accuracy.modes.many_modes [--problems two mixture orientations arm]
        [--seeds 5] [--first-seed 0] [--particles 512] [--states 16]

For each problem and seed 4 runs of SMC side by side, from the prior; then 4 chains of replica exchange, whose warm-up
counts and which go on until they have taken as many gradients. Printed are, over seeds, the root mean square error of
the log evidence where it is known (else its mean and standard deviation), the mean of the errors that a run states, the
mean total variation distance of the shares of the modes from the truth, the share of draws outside of all modes, and
gradients and processor seconds of a seed.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from benchmarks.accuracy.evidence.problems import SHARE, two_modes, two_modes_truth
from benchmarks.papers.msd.robot_arm_model import climbed, flatten, log_density, model, original
from benchmarks.problems.mixtures import FREE_ROWS, SIGMA, near_one_or_two, product
from benchmarks.problems.orientations import MODES
from benchmarks.problems.orientations import mixture as mixture_of_orientations
from benchmarks.study import option, read
from benchmarks.tables import formatted, show
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, ReplicaExchange

CHAINS = 4
ORIENTATIONS = 200
OTHER_MODES = 20.0  # nats below the best
BEST_OF_ARM = 551.3
CLIMBS = 12


class Case(NamedTuple):
    """A posterior with several modes.

    Attributes:
        model: with its arguments.
        modes: draws ``{site: (draws, ...)}`` to the number of the mode of each, -1 for none.
        shares: of the modes.
        log_evidence: where it is known.
        levels: of the ladder: twice the barrier that a first run told, and one.
        warmup_steps: of replica exchange.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    modes: Callable[[dict[str, torch.Tensor]], torch.Tensor]
    shares: list[float]
    log_evidence: float | None
    levels: int
    warmup_steps: int = 300


def two() -> Case:
    """Gaussians of width 0.1 at ±4, with 0.3 and 0.7 of the mass, under a prior of width 5."""
    known = two_modes_truth()[0]
    return Case(two_modes, (), lambda draws: (draws["x"][:, 0] > 0).long(), [SHARE, 1 - SHARE], known, levels=9)


def paper(n=2) -> Case:
    """The mixture of the OHMC paper over (Q, R) on V(n,2): 16 modes of equal mass."""

    def model():
        Q = pyro.sample("Q", StiefelUniform(n, 2))
        prior = dist.Normal(torch.tensor([0.7, 1.5, 0.0]), torch.tensor([0.5, 1.5, 1.0]))
        v = pyro.sample("v", prior.to_event(1))
        M = product(Q, v, torch)
        others = ((M[..., FREE_ROWS:, :] - 1) ** 2).sum((-2, -1)) / (2 * SIGMA**2)
        density = near_one_or_two(M[..., :FREE_ROWS, :], torch).sum((-2, -1)) - others
        density = density + n * v[..., 0] + (n - 1) * v[..., 2]
        pyro.factor("mixture", density - prior.log_prob(v).sum(-1))

    def modes(draws):
        M = product(draws["Q"], draws["v"], torch)[..., :FREE_ROWS, :] > 1.5
        return (M.flatten(1).long() * torch.tensor([1, 2, 4, 8])).sum(-1)

    # dM is vol V(n,2) Π rᵢᵢ^(n-i) dR dQ, Q uniform (Muirhead, theorem 2.1.13).
    volume = (
        2 * math.log(2) + n * math.log(math.pi) - math.lgamma(n / 2) - math.lgamma((n - 1) / 2) - math.log(math.pi) / 2
    )
    gaussian = math.log(SIGMA * math.sqrt(2 * math.pi))
    return Case(model, (), modes, [1 / 16] * 16, 4 * math.log(2) + 2 * n * gaussian - volume, levels=6)


def orientations() -> Case:
    """Two components of 200 orientations, whose labels may change places; the numbers are the same for all seeds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        group = torch.arange(ORIENTATIONS) % 2
        X = MatrixLangevin(MODES.double()[group]).sample()

    def modes(draws):
        F, weights = draws["F"], draws["weights"]
        parts = torch.stack([MatrixLangevin(F[:, k, None]).log_prob(X) for k in (0, 1)], -1) + weights.log()[:, None]
        density = parts.logsumexp(-1).sum(-1) + dist.Normal(0.0, 5.0).log_prob(F).sum((-3, -2, -1))
        first = (F[:, 0, 0, 0] < F[:, 1, 0, 0]).long()
        return torch.where(density > float(density.max()) - OTHER_MODES, first, -1)

    return Case(mixture_of_orientations, (X,), modes, [0.5, 0.5], None, levels=16)


def arm() -> Case:
    """MacKay's robot arm: a few draws climb, and the mode with the largest evidence that is known ends at 551.3."""
    data = original()

    def modes(draws):
        vectors = flatten(draws, 1)
        some = vectors[:: max(len(vectors) // CLIMBS, 1)]
        ends = torch.stack([climbed(vector, data, max_nfev=2000, ftol=1e-10, xtol=1e-10) for vector in some])
        return (log_density(ends, data) < BEST_OF_ARM - 1).long()

    return Case(model, (data.x_train, data.y_train), modes, [1.0, 0.0], None, levels=40, warmup_steps=1000)


CASES = {"two": two, "paper": paper, "orientations": orientations, "arm": arm}


class Found(NamedTuple):
    """Result of one seed."""

    log_evidence: float
    error: float
    distance: float
    outside: float
    gradients: int
    seconds: float
    note: str = ""


def of_draws(case: Case, draws: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Distance of the shares of modes from the truth, and the share outside of all."""
    modes = case.modes(draws)
    inside = modes[modes >= 0]
    shares = torch.bincount(inside, minlength=len(case.shares)) / max(len(inside), 1)
    return float((shares - torch.tensor(case.shares)).abs().sum() / 2), float((modes < 0).double().mean())


def by_smc(case: Case, particles: int, states: int) -> tuple[Found, SMC]:
    """4 runs from the prior."""
    began = time.process_time()
    smc = SMC(OHMC(case.model), particles, CHAINS, chain_length=states, disable_progbar=True)
    smc.run(*case.args)
    seconds = time.process_time() - began
    gradients = sum(level.steps + 1 for level in smc.levels) * CHAINS * particles // states
    found = of_draws(case, smc.get_samples())
    return Found(smc.log_evidence, smc.log_evidence_error, *found, gradients, seconds), smc


class Gradients:
    """Counts them, of all replicas and iterations."""

    def __init__(self, levels: int) -> None:
        self.of_an_iteration = 0.0
        self._levels, self.made, self._iterations = levels, 0, 0

    def __call__(self, iteration: Any) -> None:
        steps = iteration.statistics["n_steps"]
        self.made += (int(steps[0]) + 1) * len(steps) * self._levels
        self._iterations += 1

    @property
    def mean(self) -> float:
        return self.made / self._iterations


def by_exchange(case: Case, budget: int) -> tuple[Found, MCMC]:
    """4 chains that go on until they have taken as many gradients."""
    began, count = time.process_time(), Gradients(case.levels)
    options = {"num_chains": CHAINS, "consumers": [count], "tempering": ReplicaExchange(levels=case.levels)}
    mcmc = MCMC(OHMC(case.model), 100, case.warmup_steps, disable_progbar=True, **options)
    mcmc.run(*case.args)
    ahead = int((budget - count.made) / count.mean)
    if ahead > 0:
        mcmc.continue_run(ahead)
    seconds = time.process_time() - began
    told = mcmc.diagnostics()["replica_exchange"]
    note = f"Λ {told['barrier']:.1f}, {int(told['round_trips'].sum())} trips"
    found = of_draws(case, mcmc.get_samples())
    return Found(told["log_evidence"], told["log_evidence_error"], *found, count.made, seconds, note), mcmc


def row(name: str, case: Case, found: list[Found]) -> list[str]:
    """Over seeds."""
    evidence = np.array([each.log_evidence for each in found])
    if case.log_evidence is None:
        said = f"{evidence.mean():.2f}, sd {evidence.std(ddof=min(1, len(found) - 1)):.2f}"
    else:
        said = f"{math.sqrt(((evidence - case.log_evidence) ** 2).mean()):.3f}"
    error, distance, outside, gradients, seconds = np.mean([each[1:6] for each in found], 0)
    figures = formatted(".3f .3f", error, distance)
    return [name, said, *figures, f"{100 * outside:.0f} %", f"{gradients / 1e3:.0f}k", f"{seconds:.1f}", found[-1].note]


def main(argv=None):
    arguments = read(
        __doc__, argv, problems=option(list(CASES), choices=CASES), seeds=option(5, "how many"), first_seed=0,
        particles=option(512, "of each run of SMC, which is the budget"),
        states=option(16, "of a chain of SMC at each level"),
    )  # fmt: skip
    warnings.simplefilter("ignore")  # of runs that disagree, of which the table tells
    rows = []
    for name in arguments.problems:
        case = CASES[name]()
        found: dict[str, list[Found]] = {"SMC": [], "replica exchange": []}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            pyro.set_rng_seed(seed)
            found["SMC"].append(by_smc(case, arguments.particles, arguments.states)[0])
            print(name, found["SMC"][-1], flush=True)
            pyro.set_rng_seed(seed)
            found["replica exchange"].append(by_exchange(case, found["SMC"][-1].gradients)[0])
            print(name, found["replica exchange"][-1], flush=True)
        rows += [row(f"{name}, {method}", case, seeds) for method, seeds in found.items()]
    titles = ["", "log evidence", "stated error", "distance", "outside", "gradients", "CPU s", ""]
    show(titles, rows)


if __name__ == "__main__":
    main()
