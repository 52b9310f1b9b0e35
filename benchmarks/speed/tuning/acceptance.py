"""Worth of OHMC's defaults of acceptance probability and jitter: effective draws by those of other pairs.

    python -m benchmarks.speed.tuning.acceptance --only Langevin --seeds 0 1

Ratios to ``target_accept_prob=0.8, trajectory_jitter=0.5``, by draw and by gradient after warm-up, geometric means over
seeds: where steps cost little beside an iteration, as in native code, those by draw count, for large models those by
gradient. The last rows are geometric means over posteriors.
"""

import numpy as np

from benchmarks.speed.tuning.one_run import measured
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.study import named, option, read
from benchmarks.tables import show

PAIRS = ((0.8, 0.5), (0.8, 0.3), (0.9, 0.5), (0.9, 0.3), (0.9, 0.2), (0.95, 0.3))


def worth(posterior, pair, seeds, sizes):
    """The logarithms of effective draws by draw and by gradient, averaged over seeds."""
    chains, warmup, draws = sizes
    options = {"target_accept_prob": pair[0], "trajectory_jitter": pair[1]}
    found = [measured(posterior, chains, warmup, draws, seed, **options) for seed in seeds]
    sizes = np.array([[each["ess_min"] / (chains * draws), each["ess_min"] / each["sampling"]] for each in found])
    return np.log(sizes).mean(0)


def rows(chosen, seeds, sizes):
    """Two rows for each posterior, and two of geometric means."""
    found = {}
    for name, posterior in chosen.items():
        logs = np.array([worth(posterior, pair, seeds, sizes) for pair in PAIRS])
        found[name] = logs - logs[0]
        yield from _both(name, found[name])
    yield from _both("all", np.mean(list(found.values()), 0))


def _both(name, logs):
    for column, kind in enumerate(("draw", "gradient")):
        yield [name, kind, *[f"{ratio:.2f}" for ratio in np.exp(logs[:, column])]]


def main(argv=None):
    only = option("", "parts of the names of posteriors, with | between them")
    sizes = option((8, 500, 1000), "chains, warm-up, draws")
    arguments = read(__doc__, argv, only=only, seeds=[0, 1], sizes=sizes)
    chosen = named(posteriors(), arguments.only)
    headings = [f"{accept}, jitter {jitter}" for accept, jitter in PAIRS]
    show(["posterior", "by", *headings], rows(chosen, arguments.seeds, arguments.sizes))


if __name__ == "__main__":
    main()
