"""What storing costs: the same run with and without, one after the other.

    python -m benchmarks.storing.cost

64 chains, 1,000 draws after as much warm-up, a matrix on V(3, 2). Each pair has one seed and so the same draws; what is
printed is the median ratio of a pair, of processor time and of wall time, with its quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import pyro
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC


def model() -> None:
    """A matrix Langevin distribution."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("pull", 3 * U[0, 0] + 2 * U[1, 1])


def seconds(store: Path | None, seed: int, draws: int, chains: int) -> tuple[float, float, torch.Tensor]:
    """Processor and wall seconds of a run, and its last draw."""
    pyro.set_rng_seed(seed)
    mcmc = MCMC(OHMC(model), draws, num_chains=chains, disable_progbar=True, store=store)
    processor, wall = time.process_time(), time.perf_counter()
    mcmc.run()
    spent = time.process_time() - processor, time.perf_counter() - wall
    return *spent, mcmc.get_samples(group_by_chain=True)["U"][:, -1].clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--folder", default=None, help="on the disk that is to be measured")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seconds(None, 0, arguments.draws, arguments.chains)  # compilers are warm
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        for pair in range(arguments.pairs):
            order = [None, Path(place, f"{pair}")]
            found = {
                store is None: seconds(store, pair, arguments.draws, arguments.chains)
                for store in (order if pair % 2 else order[::-1])
            }
            assert torch.equal(found[True][2], found[False][2]), "storing changed a draw"
            rows.append((found[True][0], found[False][0] / found[True][0], found[False][1] / found[True][1]))
    print(
        f"{arguments.chains} chains × {arguments.draws} draws: {statistics.median(r[0] for r in rows):.2f} s unstored"
    )
    for name, column in (("processor", 1), ("wall", 2)):
        low, middle, high = statistics.quantiles([row[column] for row in rows], n=4)
        print(f"stored / unstored, {name} time: {middle:.3f} (quartiles {low:.3f}, {high:.3f})")


if __name__ == "__main__":
    main()
