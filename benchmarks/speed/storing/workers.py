"""Time of four shards by two workers and by one.

    python -m benchmarks.speed.storing.workers --workers 1 2 4

Run it on quiet cores, and give it no ``taskset``. Pools are made and warm before the clock starts, as in a batch job;
what a shard costs beside its draws, its graphs and native code above all, is in.
"""

import multiprocessing
import os
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pyro
import torch

from benchmarks.speed.storing.cost import model
from benchmarks.study import read
from benchmarks.tables import formatted, show
from pyro_manifold.infer import MCMC, OHMC, Shards


def seconds(workers: int, shards: int, draws: int, chains: int) -> tuple[float, torch.Tensor]:
    """Wall time of a run, and its draws."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        list(executor.map(_ready, range(4 * workers)))
        pyro.set_rng_seed(0)
        mcmc = MCMC(OHMC(model), draws, num_chains=chains, chain_method=Shards(executor, shards), disable_progbar=True)
        begun = time.perf_counter()
        mcmc.run()
        return time.perf_counter() - begun, mcmc.get_samples()["U"]


def _ready(_: int) -> int:
    import pyro_manifold.infer  # noqa: F401

    time.sleep(0.1)
    return os.getpid()


def main(argv: list[str] | None = None) -> None:
    arguments = read(__doc__, argv, workers=[1, 2], shards=4, chains=256, draws=4000, repeats=3)
    warnings.simplefilter("ignore")
    measure = partial(seconds, shards=arguments.shards, draws=arguments.draws, chains=arguments.chains)
    times, draws = {}, {}
    for workers in arguments.workers:
        found = [measure(workers) for _ in range(arguments.repeats)]
        times[workers], draws[workers] = statistics.median(spent for spent, _ in found), found[0][1]
    first = arguments.workers[0]
    print(f"{arguments.shards} shards of {arguments.chains // arguments.shards} chains × {arguments.draws} draws")
    equal = {workers: "yes" if torch.equal(each, draws[first]) else "NO" for workers, each in draws.items()}
    rows = ([k, *formatted(".1f .2f", spent, times[first] / spent), equal[k]] for k, spent in times.items())
    show(("workers", "seconds", "times faster", "same draws"), rows)


if __name__ == "__main__":
    main()
