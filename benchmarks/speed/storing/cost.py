"""Cost of storing: the same run with and without, one after the other.

    python -m benchmarks.speed.storing.cost

64 chains, 1,000 draws after as much warm-up, a matrix on V(3, 2). Each pair has one seed and so the same draws; what is
printed is the median ratio of a pair, of processor time and of wall time, with its quartiles. Other programs on the
machine move these; less so the share of each run that is spent inside its draw storage, which comes last.
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch

from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.running import InMemory, OnDisk


def model() -> None:
    """A matrix Langevin distribution."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("pull", 3 * U[0, 0] + 2 * U[1, 1])


_inside = [0.0, 0.0]  # processor and wall seconds


class Watched:
    """Adds up the time of a method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, owner: Any, kind: type) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            processor, wall = time.process_time(), time.perf_counter()
            try:
                return self._method(owner, *args, **kwargs)
            finally:
                _inside[0] += time.process_time() - processor
                _inside[1] += time.perf_counter() - wall

        return watched


def watch() -> None:
    """Add up the time of whatever a run asks of its draw storage."""
    for storage in (InMemory, OnDisk):
        for name in ("__init__", "__call__", "finish", "samples", "statistics"):
            setattr(storage, name, Watched(getattr(storage, name)))


Spent = tuple[float, float]


def seconds(store: Path | None, seed: int, draws: int, chains: int) -> tuple[Spent, Spent, torch.Tensor]:
    """Processor and wall seconds of a run, those inside its draw storage, and its last draw."""
    pyro.set_rng_seed(seed)
    _inside[:] = [0.0, 0.0]
    mcmc = MCMC(OHMC(model), draws, num_chains=chains, disable_progbar=True, store=store)
    processor, wall = time.process_time(), time.perf_counter()
    mcmc.run()
    spent = time.process_time() - processor, time.perf_counter() - wall
    inside = _inside[0], _inside[1]
    return spent, inside, mcmc.get_samples(group_by_chain=True)["U"][:, -1].clone()


def main() -> None:
    arguments = read(__doc__, pairs=9, draws=1000, chains=64, folder=option(None, "on the disk that is to be measured"))
    warnings.simplefilter("ignore")
    seconds(None, 0, arguments.draws, arguments.chains)  # compilers are warm
    watch()
    ratios, stored, kept = [], [], []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        for pair in range(arguments.pairs):
            order = [None, Path(place, f"{pair}")]
            found = {
                store is None: seconds(store, pair, arguments.draws, arguments.chains)
                for store in (order if pair % 2 else order[::-1])
            }
            (memory, of_memory, before), (disk, of_disk, after) = found[True], found[False]
            assert torch.equal(before, after), "storing changed a draw"
            for each, parts, wholes in ((ratios, disk, memory), (stored, of_disk, disk), (kept, of_memory, memory)):
                each.append([part / whole for part, whole in zip(parts, wholes, strict=True)])
    print(f"{arguments.chains} chains × {arguments.draws} draws")
    shares = [f"share of {run} inside its draw storage" for run in ("a stored run", "a run in memory")]
    tables = zip(("stored run / run in memory", *shares), (ratios, stored, kept), strict=True)
    rows = ([name, _median(each, 0), _median(each, 1)] for name, each in tables)
    show(("median (quartiles)", "processor time", "wall time"), rows)


def _median(rows: list[list[float]], kind: int) -> str:
    low, middle, high = statistics.quantiles([row[kind] for row in rows], n=4)
    return f"{middle:.3f} ({low:.3f}, {high:.3f})"


if __name__ == "__main__":
    main()
