"""Effective draws a second beside NumPyro's, chains like against like: whole runs, and long ones.

    python -m benchmarks.speed.rates                        twenty to thirty minutes
    python -m benchmarks.speed.rates --only Langevin --chains 4
    python -m benchmarks.speed.rates --peer nutpie          at 4 chains, compiling left out for both

The short form of `benchmarks.speed.samplers`, whose conditions it has: each run is a process of its own on one core, in
float64, with empty caches, and seconds hold all but imports. Of NumPyro's samplers the best counts. Of nutpie the
problems are those whose expansion has a closed form.
"""

from __future__ import annotations

import argparse

from benchmarks.estimates import summary
from benchmarks.machine import machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.speed.larger import COMPONENTS, MATRICES
from benchmarks.speed.plan import (
    CONFIGURATIONS,
    DEEP,
    DEPTH,
    HMC_PROBLEMS,
    IN_TURN,
    MIXTURES,
    NUMPYRO,
    NUMPYRO_HMC,
    NUTPIE,
    OURS,
)
from benchmarks.tables import show

SMALL = ("mixture of the OHMC paper, V(3,2)", "Langevin V(10,3)", "Langevin V(50,5)")
LARGER = (MATRICES, COMPONENTS)
OF_NUTPIE = ("mixture of the OHMC paper, V(2,2)", "mixture of the OHMC paper, V(3,2)")
SIZES = {4: {"whole": (500, 500), "long": (500, 10_000)}, 64: {"whole": (300, 500), "long": (300, 4_000)}}
COLUMNS = ("problem", "chains", "run", "min ESS", "R-hat", "seconds", "ESS/s")


def measured(name, peer, chains, sizes, threads, compiled):
    """Smallest ESS, R-hat and seconds of a run, with ``compiled`` once everything is; None if it failed."""
    module, options = CONFIGURATIONS[peer]
    if peer in DEEP and name in MIXTURES:
        options = options | {"max_tree_depth": DEPTH}
    setting = Setting(peer, module, chains, *sizes, options)
    problems = f"benchmarks.{'speed.larger' if name in LARGER else 'problems.page'}:PROBLEMS"
    values, figures = measure_apart(problems, name, setting, threads, 600)
    if values is None:
        return None
    found = summary(values)
    return found["ess_min"], found["rhat"], figures["seconds"] - (figures["compiling"] if compiled else 0)


def columns(figures):
    size, rhat, seconds = figures
    return [f"{size:.0f}", f"{rhat:.3f}", f"{seconds:.1f}", f"{size / seconds:.1f}"]


def row(name, chains, kind, sizes, peers, threads, compiled):
    own, *others = (measured(name, peer, chains, sizes, threads, compiled) for peer in (OURS, *peers))
    theirs = max(filter(None, others), key=lambda found: found[0] / found[2], default=None)
    cells = [columns(found) if found else ["failed"] * 4 for found in (own, theirs)]
    ratio = f"{own[0] / own[2] / (theirs[0] / theirs[2]):.2f}" if own and theirs else "–"
    return [name, chains, f"{kind}, {sizes[0]} + {sizes[1]}", *cells[0], *cells[1], ratio]


def beside_numpyro(chains, runs):
    """Problem, chains, kind of run, its sizes and peers."""
    for name in SMALL:
        for count in chains:
            for kind in runs:
                in_turn, static = (IN_TURN,) if count <= 4 else (), (NUMPYRO_HMC,) if name in HMC_PROBLEMS else ()
                yield name, count, kind, SIZES[count][kind], (NUMPYRO, *in_turn, *static)
    if 4 in chains and "whole" in runs:
        for name in LARGER:
            yield name, 4, "whole", (1000, 1000), (NUMPYRO, IN_TURN)


def beside_nutpie(runs):
    return ((name, 4, kind, SIZES[4][kind], (NUTPIE,)) for name in OF_NUTPIE for kind in runs)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default="NumPyro", choices=["NumPyro", "nutpie"])
    parser.add_argument("--only", default="", help="part of the names of problems")
    parser.add_argument("--chains", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--runs", nargs="+", default=["whole", "long"], choices=["whole", "long"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    peer, compiled = arguments.peer, arguments.peer == "nutpie"
    print(f"## Rates beside {peer}\n\n{machine(arguments.threads)}\n", flush=True)
    settings = beside_nutpie(arguments.runs) if compiled else beside_numpyro(arguments.chains, arguments.runs)
    chosen = [setting for setting in settings if arguments.only in setting[0]]
    titles = (*COLUMNS, f"{peer}: min ESS", *COLUMNS[4:], "ratio")
    show(titles, (row(*setting, arguments.threads, compiled) for setting in chosen))


if __name__ == "__main__":
    main()
