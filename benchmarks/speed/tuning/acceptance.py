"""Worth of OHMC's defaults of acceptance probability and jitter: effective draws by those of other pairs.

    python -m benchmarks.speed.tuning.acceptance --only Langevin --seeds 0 1

Ratios to ``target_accept_prob=0.8, trajectory_jitter=0.5``, by draw and by gradient after warm-up, geometric means over
seeds: where steps cost little beside an iteration, as in native code, those by draw count, for large models those by
gradient. The last rows are geometric means over posteriors.
"""

import argparse

import numpy as np
import torch

from benchmarks.speed.tuning.one_run import measured
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.tables import show

PAIRS = ((0.8, 0.5), (0.8, 0.3), (0.9, 0.5), (0.9, 0.3), (0.9, 0.2), (0.95, 0.3))


def worth(posterior, pair, seeds, sizes):
    """The logarithms of effective draws by draw and by gradient, averaged over seeds."""
    chains, warmup, draws = sizes
    options = {"target_accept_prob": pair[0], "trajectory_jitter": pair[1]}
    found = [measured(posterior, chains, warmup, draws, seed, **options) for seed in seeds]
    sizes = np.array([[each["ess_min"] / (chains * draws), each["ess_min"] / each["sampling"]] for each in found])
    return np.log(sizes).mean(0)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="parts of the names of posteriors, with | between them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--sizes", type=int, nargs=3, default=[8, 500, 1000], help="chains, warm-up, draws")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    found = {}

    def rows():
        for name, posterior in posteriors().items():
            if any(part in name for part in arguments.only.split("|")):
                logs = np.array([worth(posterior, pair, arguments.seeds, arguments.sizes) for pair in PAIRS])
                found[name] = logs - logs[0]
                yield from told(name, found[name])
        yield from told("all", np.mean(list(found.values()), 0))

    def told(name, logs):
        for column, kind in enumerate(("draw", "gradient")):
            yield [name, kind, *[f"{ratio:.2f}" for ratio in np.exp(logs[:, column])]]

    show(["posterior", "by", *[f"{accept}, jitter {jitter}" for accept, jitter in PAIRS]], rows())


if __name__ == "__main__":
    main()
