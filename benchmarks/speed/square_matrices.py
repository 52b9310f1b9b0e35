"""Square orthonormal matrices beside rotations: uniform on O(n) and SO(n), whole runs and long ones.

    python -m benchmarks.speed.square_matrices
    python -m benchmarks.speed.square_matrices --sizes 3 --seeds 0

Each run is a process of its own on one core, in float64, with empty caches: 4 chains of 1,000 iterations of warm-up and
1,000 draws, compiling included, then 10,000 draws more. Effective sizes are the least of bulk and tail of all entries;
rates are for seconds of the processor, medians over seeds.
"""

import json
import statistics
import sys
import time

import arviz
import pyro

from benchmarks.measure import run_apart
from benchmarks.study import read, set_up
from benchmarks.tables import show
from pyro_manifold.distributions import SpecialOrthogonalUniform, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC

GROUPS = {"O": lambda n: StiefelUniform(n, n), "SO": SpecialOrthogonalUniform}
WARMUP, WHOLE, LONG = 1000, 1000, 10_000
LIMIT = 300  # seconds of a run


def measured(group, n, seed):
    """Effective draws a second of a whole run, and of draws that continue it."""
    distribution = GROUPS[group](n)
    pyro.set_rng_seed(seed)
    mcmc = MCMC(OHMC(lambda: pyro.sample("X", distribution)), WHOLE, WARMUP, num_chains=4, disable_progbar=True)
    times = [time.process_time()]
    mcmc.run()
    times.append(time.process_time())
    mcmc.continue_run(LONG)
    times.append(time.process_time())
    entries = mcmc.get_samples(group_by_chain=True)["X"].flatten(2)
    whole, long = (
        min(float(arviz.ess(x.numpy(), method=kind)) for x in part.unbind(2) for kind in ("bulk", "tail"))
        for part in entries.split((WHOLE, LONG), dim=1)
    )
    return {"whole": whole / (times[1] - times[0]), "long": long / (times[2] - times[1])}


def rows(sizes, seeds):
    for n in sizes:
        runs = {
            group: [run_apart(__spec__.name, group, str(n), str(seed), threads=1, limit=LIMIT) for seed in seeds]
            for group in GROUPS
        }
        cells = []
        for kind in ("whole", "long"):
            square, rotations = (statistics.median(run[kind] for run in runs[group]) for group in GROUPS)
            cells += [f"{square:.0f}", f"{rotations:.0f}", f"{square / rotations:.2f}"]
        yield n, *cells


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in GROUPS:
        set_up()
        print(json.dumps(measured(argv[0], *map(int, argv[1:]))))
        return
    arguments = read(__doc__, argv, sizes=[3, 10, 30], seeds=[0, 1, 2])
    of = ("O(n)", "SO(n)", "ratio")
    heads = ("n", *(f"{name}, {run}" for run in ("whole run", "more draws") for name in of))
    show(heads, rows(arguments.sizes, arguments.seeds))


if __name__ == "__main__":
    main()
