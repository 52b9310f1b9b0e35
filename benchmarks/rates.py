"""Effective draws a second beside NumPyro's, chains like against like: whole runs, and long ones.

    python -m benchmarks.rates                        ten to twenty minutes
    python -m benchmarks.rates --only Langevin --chains 4

The short form of `benchmarks.samplers`, whose conditions it has: each run is a process of its own on one core, in
float64, with empty caches, and seconds hold all but imports. Of NumPyro's samplers the best counts.
"""

from __future__ import annotations

import argparse

from benchmarks.estimates import summary
from benchmarks.machine import machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.plan import CONFIGURATIONS, DEPTH, IN_TURN, MIXTURES, NUMPYRO, OURS
from benchmarks.tables import show

NAMES = ("mixture of the OHMC paper, V(3,2)", "Langevin V(10,3)", "Langevin V(50,5)")
SIZES = {4: {"whole": (500, 500), "long": (500, 10_000)}, 64: {"whole": (300, 500), "long": (300, 4_000)}}
COLUMNS = (
    "problem", "chains", "run", "min ESS", "R-hat", "seconds", "ESS/s", "NumPyro: min ESS", "R-hat", "seconds", "ESS/s",
    "ratio",
)  # fmt: skip


def measured(name, peer, chains, sizes, threads):
    """Smallest ESS, R-hat and seconds of a run; None if it failed."""
    module, options = CONFIGURATIONS[peer]
    if peer != OURS and name in MIXTURES:
        options = options | {"max_tree_depth": DEPTH}
    setting = Setting(peer, module, chains, *sizes, options)
    values, figures = measure_apart("benchmarks.problems:PROBLEMS", name, setting, threads, 600)
    if values is None:
        return None
    found = summary(values)
    return found["ess_min"], found["rhat"], figures["seconds"]


def columns(figures):
    size, rhat, seconds = figures
    return [f"{size:.0f}", f"{rhat:.3f}", f"{seconds:.1f}", f"{size / seconds:.1f}"]


def row(name, chains, kind, threads):
    sizes = SIZES[chains][kind]
    peers = [NUMPYRO, IN_TURN] if chains <= 4 else [NUMPYRO]
    own = measured(name, OURS, chains, sizes, threads)
    others = [found for peer in peers if (found := measured(name, peer, chains, sizes, threads))]
    theirs = max(others, key=lambda found: found[0] / found[2], default=None)
    cells = [columns(found) if found else ["failed"] * 4 for found in (own, theirs)]
    ratio = f"{own[0] / own[2] / (theirs[0] / theirs[2]):.2f}" if own and theirs else "–"
    return [name, chains, f"{kind}, {sizes[0]} + {sizes[1]}", *cells[0], *cells[1], ratio]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the names of problems")
    parser.add_argument("--chains", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--runs", nargs="+", default=["whole", "long"], choices=["whole", "long"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    print(f"## Rates beside NumPyro\n\n{machine(arguments.threads)}\n", flush=True)
    settings = [
        (name, chains, kind)
        for name in NAMES
        if arguments.only in name
        for chains in arguments.chains
        for kind in arguments.runs
    ]
    show(COLUMNS, (row(*setting, arguments.threads) for setting in settings))


if __name__ == "__main__":
    main()
