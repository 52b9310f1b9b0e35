"""Slice sampling on the sphere against Hamiltonian Monte Carlo and against geosss.

    python -m benchmarks.speed.slice_sampling [--only "10 dimensions"] [--chains 10] [--draws 2000] [--warmup 300]

Mixtures of von Mises–Fisher distributions with concentration 100: five with weights 1/15 to 5/15 about random centres,
and a single one. All chains begin at uniform random points. The clock runs for the draws alone, after warm-up: imports,
tracing and compiling come before. Printed are seconds of the wall and of the processor, evaluations of the density for
each draw (gradients of OHMC), the smallest effective size (rank-normalised) among the first coordinate and the shares
of components, the same for each second of the processor, and the total variation distance between the shares that
draws find and the truth.

geosss (github.com/microscopic-image-analysis/geosss) asks for another version of ArviZ than this package's other peers,
though its sampler imports none: `pip install --no-deps geosss==0.3.5`. Without it its rows are left out.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyro
import torch

from benchmarks.estimates import effective_sizes
from benchmarks.study import Study, median, option
from benchmarks.timing import stopwatch
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, GeodesicSlice, ReplicaExchange

CONCENTRATION = 100.0
LEVELS = 8  # of replica exchange


class Mixture(NamedTuple):
    """A mixture of von Mises–Fisher distributions of one concentration, so that their normalisers are one.

    Attributes:
        centres: unit vectors ``(components, n)``.
        weights: of the components.
    """

    centres: np.ndarray
    weights: np.ndarray

    @classmethod
    def random(cls, components: int, n: int) -> Mixture:
        """Centres from a seed of their own; weights in the ratio 1 : 2 : 3 and so on."""
        centres = np.random.default_rng(0).standard_normal((components, n))
        weights = np.arange(1.0, components + 1)
        return cls(centres / np.linalg.norm(centres, axis=1, keepdims=True), weights / weights.sum())

    def model(self):
        centres, offsets = torch.as_tensor(CONCENTRATION * self.centres), torch.as_tensor(np.log(self.weights))
        x = pyro.sample("x", StiefelUniform(self.centres.shape[1], 1))
        pyro.factor("mixture", torch.logsumexp(centres @ x[..., 0] + offsets, 0))

    def shares(self, x: np.ndarray) -> np.ndarray:
        """The probability of each component given each point, whose mean is its weight: ``(..., components)``."""
        logits = CONCENTRATION * x @ self.centres.T + np.log(self.weights)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)


PROBLEMS = {
    "five modes, 3 dimensions": Mixture.random(5, 3),
    "five modes, 10 dimensions": Mixture.random(5, 10),
    "one mode, 10 dimensions": Mixture.random(1, 10),
    "one mode, 100 dimensions": Mixture.random(1, 100),
}


class Found(NamedTuple):
    """Draws ``(chains, draws, n)``, seconds of the wall and of the processor, and evaluations for each draw."""

    draws: np.ndarray
    seconds: float
    cpu_seconds: float
    evaluations: float


class Sizes(NamedTuple):
    chains: int
    warmup: int
    draws: int


def by_kernel(make: Callable, statistic: str, mixture: Mixture, sizes: Sizes, **options) -> Found:
    """Chains of this package: the clock starts when they are continued."""
    counts: list[float] = []
    mcmc = MCMC(
        make(mixture.model), sizes.warmup, sizes.warmup, num_chains=sizes.chains,
        consumers=[lambda iteration: counts.append(float(iteration.statistics[statistic].double().mean()))],
        disable_progbar=True, **options,
    )  # fmt: skip
    mcmc.run()
    with stopwatch() as clock:
        mcmc.continue_run(sizes.draws)
    draws = mcmc.get_samples(group_by_chain=True)["x"][:, -sizes.draws :, :, 0].numpy()
    return Found(draws, clock["seconds"], clock["cpu_seconds"], float(np.mean(counts[-sizes.draws :])))


def by_geosss(mixture: Mixture, sizes: Sizes) -> Found:
    """Chains of geosss, one after the other."""
    import geosss

    parts = [geosss.VonMisesFisher(CONCENTRATION * centre) for centre in mixture.centres]
    target = geosss.MixtureModel(parts, mixture.weights)
    asked, of_target = [], target.log_prob

    def counted(x):
        asked.append(1)
        return of_target(x)

    target.log_prob = counted
    draws, seconds, evaluations = [], np.zeros(2), 0
    for chain in range(sizes.chains):
        start = np.random.default_rng(chain).standard_normal(mixture.centres.shape[1])
        sampler = geosss.ShrinkageSphericalSliceSampler(target, start / np.linalg.norm(start), seed=chain)
        sampler.sample(sizes.warmup)
        asked.clear()
        with stopwatch() as clock:
            draws.append(sampler.sample(sizes.draws))
        seconds += clock["seconds"], clock["cpu_seconds"]
        evaluations += len(asked)
    return Found(np.stack(draws), *seconds, evaluations / (sizes.chains * sizes.draws))


METHODS = {
    "GeodesicSlice": lambda mixture, sizes: by_kernel(GeodesicSlice, "n_evaluations", mixture, sizes),
    "OHMC": lambda mixture, sizes: by_kernel(OHMC, "n_steps", mixture, sizes),
    "OHMC, replica exchange": lambda mixture, sizes: by_kernel(
        OHMC, "n_steps", mixture, sizes, tempering=ReplicaExchange(levels=LEVELS)
    ),
    "geosss, shrinkage": by_geosss,
}


def methods_for(_, mixture: Mixture) -> dict[str, Callable]:
    """Methods that are installed; replica exchange only where there are several modes."""
    left_out = ["geosss, shrinkage"] if importlib.util.find_spec("geosss") is None else []
    left_out += ["OHMC, replica exchange"] if len(mixture.weights) == 1 else []
    return {name: method for name, method in METHODS.items() if name not in left_out}


def run(mixture: Mixture, method: Callable, seed: int, arguments) -> dict[str, float]:
    """Figures of one run."""
    pyro.set_rng_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that disagree, as the table shows
        found = method(mixture, Sizes(arguments.chains, arguments.warmup, arguments.draws))
    shares, several = mixture.shares(found.draws), len(mixture.weights) > 1
    values = {"x": found.draws[..., 0]} | {str(k): shares[..., k] for k in range(len(mixture.weights)) if several}
    size = min(effective_sizes(values))
    return {
        **{name: value for name, value in found._asdict().items() if name != "draws"},
        "size": size,
        "rate": size / found.cpu_seconds,
        "distance": float(np.abs(shares.mean((0, 1)) - mixture.weights).sum() / 2) if several else None,
    }


STUDY = Study(
    __doc__, ("", ""), {
        "s": ("seconds", ".1f"), "CPU s": ("cpu_seconds", ".1f"), "evaluations": ("evaluations", ".1f"),
        "effective size": ("size", ".0f"), "for each CPU s": ("rate", ".0f"),
        "distance": lambda runs: "" if runs[0]["distance"] is None else median("distance", ".3f")(runs),
    },
    problems=PROBLEMS, methods=methods_for, run=run,
    options={"chains": 10, "draws": option(2000, "of each chain"), "warmup": 300},
)  # fmt: skip
main = STUDY.main


if __name__ == "__main__":
    main()
