"""Time of four shards by two workers and by one.

    python -m benchmarks.speed.storing.workers --workers 1 2 4

Run it on quiet cores, and give it no ``taskset``. Pools are made and warm before the clock starts, as in a batch job;
what a shard costs beside its draws, its graphs and native code above all, is in.
"""

import argparse
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--chains", type=int, default=256)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    measure = partial(seconds, shards=arguments.shards, draws=arguments.draws, chains=arguments.chains)
    times, draws = {}, {}
    for workers in arguments.workers:
        found = [measure(workers) for _ in range(arguments.repeats)]
        times[workers], draws[workers] = statistics.median(spent for spent, _ in found), found[0][1]
    first = arguments.workers[0]
    print(f"{arguments.shards} shards of {arguments.chains // arguments.shards} chains × {arguments.draws} draws")
    print("| workers | seconds | times faster | same draws |\n|---|---|---|---|")
    for workers, spent in times.items():
        equal = "yes" if torch.equal(draws[workers], draws[first]) else "NO"
        print(f"| {workers} | {spent:.1f} | {times[first] / spent:.2f} | {equal} |")


if __name__ == "__main__":
    main()
