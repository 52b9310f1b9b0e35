"""A cointegrating vector that turns while other sites follow: effective draws on the manifold and in coordinates.

    python -m benchmarks.speed.cointegration
    python -m benchmarks.speed.cointegration --ranks 1 --seeds 0 1

Smallest bulk and tail effective size of what the posterior identifies, and the bulk effective size of the log density,
of 4 chains of 500 + 1,000 iterations, medians over seeds, with the least and the largest; processor seconds of a whole
run, compiling included; leapfrog steps of an iteration. The ways are the defaults, the Householder transform of the
orthonormal site, for which warm-up may take low-rank masses, and the transform with one dense mass matrix over this
site and the sites correlated with it.
"""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from benchmarks.estimates import effective_sizes
from benchmarks.problems.posterior import Posterior, all_entries, entries
from benchmarks.study import Study, option, spread
from benchmarks.timing import stopwatch
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.distributions.transforms import HouseholderTransform
from pyro_manifold.infer import MCMC, OHMC


def macrodata():
    """Per cent of log GDP, consumption and investment of the United States, by quarter, without their means."""
    from statsmodels.datasets import macrodata as data

    level = 100 * np.log(data.load_pandas().data[["realgdp", "realcons", "realinv"]].to_numpy())
    return torch.as_tensor(level - level.mean(0))


def error_correction(level, rank):
    """A vector error-correction model whose cointegrating vectors have the uniform prior of Villani 2005."""
    before, change = level[:-1], level.diff(dim=0)
    size = level.shape[1]

    def model():
        relations = pyro.sample("relations", StiefelUniform(size, rank))
        speeds = pyro.sample("speeds", dist.Normal(0.0, 1.0).expand([size, rank]).to_event(2))
        drift = pyro.sample("drift", dist.Normal(0.0, 10.0).expand([size]).to_event(1))
        scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([size]).to_event(1))
        expected = drift[..., None, :] + (before @ relations) @ speeds.mT
        pyro.sample("change", dist.Normal(expected, scales[..., None, :]).to_event(2), obs=change)

    return model


def of_error_correction(draws):
    """Signs, order and rotations of columns cancel in products."""
    product = draws["speeds"] @ draws["relations"].mT
    span = draws["relations"] @ draws["relations"].mT
    rest = all_entries({name: draws[name] for name in ("drift", "scales")})
    return {**entries("product", product), **entries("span", span), **rest}


def ways(rank):
    """Options of the kernel for each way."""
    transform = {"relations": HouseholderTransform(3, rank).inv}
    return {
        "defaults": {},
        "transform": {"transforms": transform},
        "transform, dense masses": {"transforms": transform, "full_mass": [("relations", "speeds")]},
    }


def measured(rank, options, seed, arguments):
    """Smallest effective sizes, that of the log density, processor seconds, and steps of an iteration."""
    posterior, (warmup, draws) = Posterior(error_correction(macrodata(), rank), of_error_correction), arguments.sizes
    pyro.set_rng_seed(seed)
    kernel = OHMC(posterior.model, **options)
    mcmc = MCMC(kernel, num_samples=draws, warmup_steps=warmup, num_chains=4, disable_progbar=True)
    with warnings.catch_warnings(), stopwatch() as times:
        warnings.simplefilter("ignore")
        mcmc.run()
    values = {k: v.numpy() for k, v in posterior.functionals(mcmc.get_samples(group_by_chain=True)).items()}
    sizes = {method: min(effective_sizes(values, method)) for method in ("bulk", "tail")}
    (of_density,) = effective_sizes({"lp": mcmc.get_extra_fields(group_by_chain=True)["lp"].numpy()}, "bulk")
    return {**sizes, "lp": of_density, "cpu_seconds": times["cpu_seconds"], "steps": float(kernel.num_steps)}


STUDY = Study(
    __doc__,
    ("rank", "way"),
    {
        "bulk ESS of 4,000": spread("bulk", ".0f"),
        "tail": spread("tail", ".0f"),
        "of the log density": ("lp", ".0f"),
        "CPU seconds": ("cpu_seconds", ".1f"),
        "steps": ("steps", ".0f"),
    },
    problems=lambda arguments: {rank: rank for rank in arguments.ranks},
    methods=lambda _, rank: ways(rank),
    run=measured,
    seeds=tuple(range(10)),
    options={"ranks": [1, 2], "sizes": option((500, 1000), "warm-up and draws")},
)
main = STUDY.main


if __name__ == "__main__":
    main()
