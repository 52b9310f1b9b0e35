"""Gradients of a run, by warm-up and draws.

    python -m benchmarks.speed.tuning.warmup --only "Langevin|noisy" --sizes 4 500 500
    python -m benchmarks.speed.tuning.warmup --one-mass          with one mass for each orthonormal matrix

A gradient is one of every chain. Effective sizes are of the worst and the median functional of a posterior, which
`benchmarks.speed.tuning.posteriors` names; for a thousand gradients those of the draws alone count.
"""

import argparse

import torch

from benchmarks.speed.tuning.one_run import measured
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.tables import show

COLUMNS = (
    "posterior", "seed", "gradients of warm-up", "of sampling", "warm-up's share", "steps a draw", "length", "ε",
    "R-hat", "ESS, worst", "median", "worst for 1,000 gradients", "CPU seconds",
)  # fmt: skip


def row(name, posterior, sizes, seed, options):
    found = measured(posterior, *sizes, seed, **options)
    chains, _, draws = sizes
    return [
        name,
        seed,
        found["warmup"],
        found["sampling"],
        f"{found['warmup'] / (found['warmup'] + found['sampling']):.2f}",
        f"{found['sampling'] / draws:.1f}",
        f"{found['length']:.2f}",
        f"{found['step_size']:.2g}",
        f"{found['rhat']:.3f}",
        f"{found['ess_min']:.0f}",
        f"{found['ess_median']:.0f}",
        f"{1000 * found['ess_min'] / (found['sampling'] * chains):.1f}",
        f"{found['cpu_seconds']:.1f}",
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of the names of posteriors, with | between them")
    parser.add_argument("--sizes", type=int, nargs=3, default=[4, 500, 500], help="chains, warm-up, draws")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--one-mass", action="store_true", help="instead of a mass for each column")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    options = {"column_masses": False} if arguments.one_mass else {}
    chosen = {k: v for k, v in posteriors().items() if any(part in k for part in arguments.only.split("|"))}
    rows = ((name, seed) for name in chosen for seed in arguments.seeds)
    show(COLUMNS, (row(name, chosen[name], arguments.sizes, seed, options) for name, seed in rows))


if __name__ == "__main__":
    main()
